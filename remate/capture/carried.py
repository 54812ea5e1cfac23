"""Tensors that one call of forward leaves for the next one, in places that a step does not read: containers and objects
of the user. The trace contains them as constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from remate_runtime.staleness import has_fields, held_by
from remate_runtime.torch_private import pytree

from ..errors import CaptureError

_DEPTH = 4  # depth of nested objects
APART = (
    "keep each tensor in an attribute of its own: self.h, self.c = h.detach(), c.detach(); or pass them to forward "
    "and return them"
)


def holds(value: object, constants: Sequence[torch.Tensor]) -> bool:
    """Return whether a value contains a constant of a trace."""
    return any(tensor is constant for tensor in _tensors(value, _DEPTH) for constant in constants)


def refuse_carried(label: str, module: str = "", source: str = "", parts: Sequence[str] = ()) -> None:
    """Raise CaptureError for state that a schedule would compute with as it was when planned."""
    message = f"forward computes with tensors in {label} and changes it: a schedule would compute with the old ones"
    raise CaptureError(message, module, source, APART, parts)


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and has_fields(leaf):
            for held in held_by(leaf).values():
                yield from _tensors(held, depth - 1)
