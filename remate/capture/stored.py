"""Tensors that forward stores in attributes of modules or in containers among its arguments. A schedule can store some
of them too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from remate_runtime.format import is_attribute
from remate_runtime.torch_private.pytree import tree_leaves

from ..errors import CaptureError
from . import trees
from .surroundings import Attributes


def stored_trees(
    attributes: Attributes, leaf: Callable[[torch.Tensor, str], dict[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the trees of attributes that forward set to tensors, by path, and the paths of other stored tensors.

    leaf: describes a tensor. Raises CaptureError if another stored tensor has a gradient, so that a loop could compute
    a loss from it.
    """
    kept: dict[str, Any] = {}
    left: list[str] = []
    for path, value in attributes.stored():
        if is_attribute(path) and not _opaque(value):
            kept[path] = trees.describe(value, path, leaf, lambda node, path: None)
        else:
            left += lost(path, [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)])
    for path, tensors in attributes.filled():
        left += lost(path, tensors)
    return kept, left


class Arguments:
    """Containers among the arguments of a call, by name, with their tensors before it."""

    def __init__(self, named: Mapping[str, object]) -> None:
        self._held = [
            (name, value, _tensors(value)) for name, value in named.items() if not isinstance(value, torch.Tensor)
        ]

    def lost(self, returned: Sequence[torch.Tensor]) -> list[str]:
        """Return the containers with new tensors. A step returns only what forward returns. Raises CaptureError if a
        new tensor has a gradient, so that a loop could compute a loss from it."""
        lost_places: list[str] = []
        for name, value, before in self._held:
            new = [t for t in _tensors(value) if not any(t is held for held in before)]
            reported = [t for t in new if not any(t is returned_tensor for returned_tensor in returned)]
            lost_places += (
                lost(f"its argument {name!r}", reported) if reported else [f"its argument {name!r}"] if new else []
            )
        return lost_places


def _tensors(value: object) -> list[torch.Tensor]:
    """Tensors of a tree, also of mappings with keys that are not text, and of attributes that are no fields."""
    return [
        *trees.tensors(value),
        *(t for t in tree_leaves(value) if isinstance(t, torch.Tensor)),
        *(t for extra in _beside_fields(value) for t in trees.tensors(extra)),
    ]


def _beside_fields(value: object) -> Iterator[object]:
    """Values of attributes of records in a tree that are not among their fields."""
    inner = trees.children(value)
    if inner is not None:
        yield from (held for name, held in getattr(value, "__dict__", {}).items() if name not in inner[1])
        for child in inner[1].values():
            yield from _beside_fields(child)


def _opaque(value: object) -> bool:
    """Whether it holds objects that a file cannot express."""
    objects: list[Any] = []
    trees.describe(value, "", lambda tensor, path: {}, lambda node, path: objects.append(node))
    return bool(objects)


def lost(path: str, tensors: list[torch.Tensor]) -> list[str]:
    """Return the path at which a step stores nothing. Raises CaptureError if one of the tensors has a gradient."""
    if any(tensor.requires_grad for tensor in tensors):
        raise CaptureError(
            f"forward leaves tensors that have a gradient in {path}, where a scheduled step cannot put them: a loss "
            "computed from them would train nothing",
            hint="return them, or set an attribute to a tensor, or to a new list, tuple or dict of tensors at each "
            "call; or store them after .detach()",
        )
    return [path]
