"""Specs of arguments and results, to compare two calls: tensors by number, everything else by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..kinds import kind_of
from ..sizes import TracedSize

_PLAIN = (bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))
_SEQUENCES = (tuple, list, torch.Size)
OPAQUE: Any = ("opaque",)  # a value that cannot be compared
GRAD = 5
"""The index in a layout that says whether the tensor requires a gradient."""


class Tensor(NamedTuple):
    """A tensor. number: its identity. layout: everything that operators see of it except its values."""

    number: int
    layout: tuple[Any, ...]


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    shape = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), int(tensor.storage_offset())
    return (*shape, tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_conj(), tensor.is_neg())


def spec(value: Any, tensor: Callable[[torch.Tensor], Tensor]) -> Any:
    """Return the nested (type, ...) of a value. tensor: numbers tensors."""
    kind = kind_of(value)
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if kind in _PLAIN:
        return kind, value
    if kind is int or kind is TracedSize:
        return int, int.__pos__(value)
    if kind is float:
        return float, float.__repr__(value)  # nan is nan, and -0.0 is not 0.0
    if kind in _SEQUENCES:
        return kind, tuple(spec(item, tensor) for item in value)
    if kind is dict and all(type(key) is str for key in value):
        return dict, tuple((key, spec(item, tensor)) for key, item in value.items())
    if kind is slice:
        return slice, tuple(spec(item, tensor) for item in (value.start, value.stop, value.step))
    return OPAQUE


def value(written: Any, tensor: Callable[[Any], Any]) -> Any:
    """Convert a spec back to a value, with other tensors. Supports sequences, dicts and plain values."""
    kind, held = written[0], written[1]
    if kind not in (*_SEQUENCES, dict, int, float, *_PLAIN):
        return tensor(written)
    if kind is dict:
        return {key: value(item, tensor) for key, item in held}
    if kind in _SEQUENCES:
        sequence: type = kind
        return sequence(value(item, tensor) for item in held)
    return float(held) if kind is float else held


def tensors(written: Any) -> Iterator[Tensor]:
    """Yield the tensors of a spec, in order."""
    if isinstance(written, Tensor):
        yield written
    elif issubclass(kind_of(written), tuple):
        for item in written:
            yield from tensors(item)


def renamed(written: Any, name: Callable[[Tensor], Any]) -> Any:
    """Replace the tensors of a spec."""
    if isinstance(written, Tensor):
        return name(written)
    return tuple(renamed(item, name) for item in written) if issubclass(kind_of(written), tuple) else written


def is_opaque(written: Any) -> bool:
    if written is OPAQUE:
        return True
    kind = kind_of(written)
    if kind is Tensor or not issubclass(kind, tuple):
        return False
    return any(is_opaque(item) for item in written if isinstance(item, tuple))
