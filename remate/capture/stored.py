"""Tensors that forward stores in attributes of modules, or puts into containers among its arguments: those that a
schedule gives back, and those that it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from remate_runtime.format import is_attribute

from ..errors import CaptureError
from . import trees
from .surroundings import Attributes


def stored_trees(
    attributes: Attributes, leaf: Callable[[torch.Tensor, str], dict[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Trees of the attributes that forward set to tensors, by path; and the paths of what it left elsewhere.

    leaf: describes a tensor. Raises CaptureError where a loop could make a loss of what would be lost.
    """
    kept: dict[str, Any] = {}
    left: list[str] = []
    for path, value in attributes.stored():
        if is_attribute(path) and not _opaque(value):
            kept[path] = trees.describe(value, path, leaf, lambda node, path: None)
        else:
            left += lost(path, [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)])
    for path, tensors in attributes.filled():
        left += lost(path, tensors)
    return kept, left


class Arguments:
    """Containers among the arguments of a call, by name, with the tensors that they hold before it."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._held = [
            (name, value, _tensors(value)) for name, value in named.items() if not isinstance(value, torch.Tensor)
        ]

    def lost(self, returned: Sequence[torch.Tensor]) -> list[str]:
        """Those that hold tensors now which they did not hold before; a step gives the caller back what forward returns
        alone. Raises CaptureError where a loop could make a loss of what would be lost."""
        lost_places: list[str] = []
        for name, value, before in self._held:
            new = [t for t in _tensors(value) if not any(t is held for held in before)]
            told = [t for t in new if not any(t is returned_tensor for returned_tensor in returned)]
            lost_places += lost(f"its argument {name!r}", told) if told else [f"its argument {name!r}"] if new else []
        return lost_places


def _tensors(value: Any) -> list[torch.Tensor]:
    """Also of a mapping with keys that are no text, which forward may have put there."""
    return [*trees.tensors(value), *(t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor))]


def _opaque(value: Any) -> bool:
    """Whether it holds what a file has no words for."""
    objects: list[Any] = []
    trees.describe(value, "", lambda tensor, path: {}, lambda node, path: objects.append(node))
    return bool(objects)


def lost(path: str, tensors: list[torch.Tensor]) -> list[str]:
    """The path of what a step does not put there. Raises CaptureError where one of the tensors has a gradient."""
    if any(tensor.requires_grad for tensor in tensors):
        raise CaptureError(
            f"forward leaves tensors that have a gradient in {path}, where a scheduled step cannot put them: a loss "
            "made of them would train nothing",
            hint="return them, or set an attribute to a tensor, or to a new list, tuple or dict of tensors at each "
            "call; or store them after .detach()",
        )
    return [path]
