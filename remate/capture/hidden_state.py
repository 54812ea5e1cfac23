"""Compares the calls of torch in several runs of forward. It detects state that nothing else does: counters in globals
and closures, iterators and the clock. Every trace runs forward more than once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .kinds import kind_of

_DEPTH = 3  # depth of nested lists in arguments
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)

_Tensor: Any = torch.Tensor
UNSEEN = frozenset({_Tensor.device.__get__, _Tensor.layout.__get__})
"""Functions that some kinds of fake tensors answer without a call of torch."""
_METADATA = frozenset(
    {
        *(getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "ndim", "requires_grad", "is_leaf")),
        *(getattr(_Tensor, name) for name in ("size", "dim", "ndimension", "stride", "numel", "nelement", "__len__")),
        *(_Tensor.is_floating_point, _Tensor.is_complex, _Tensor.is_contiguous, _Tensor.element_size),
        *(torch.numel, torch.is_floating_point, torch.is_complex, _Tensor.storage_offset),
    }
)
"""Functions that compute nothing. A cache that forward fills at its first call reads a shape once more there."""
_CONVERSIONS: dict[Any, dict[str, Any]] = {
    _Tensor.char: {"dtype": torch.int8},
    _Tensor.cpu: {"device": torch.device("cpu")},
    _Tensor.bfloat16: {"dtype": torch.bfloat16},
    _Tensor.byte: {"dtype": torch.uint8},
    _Tensor.double: {"dtype": torch.float64},
    _Tensor.float: {"dtype": torch.float32},
    _Tensor.bool: {"dtype": torch.bool},
    _Tensor.half: {"dtype": torch.float16},
    _Tensor.int: {"dtype": torch.int32},
    _Tensor.long: {"dtype": torch.int64},
}


def as_conversion(function: object, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Treat `x.float()` as `x.to(dtype=torch.float32)`, as functional tensors do."""
    conversion = _CONVERSIONS.get(function)
    return (function, kwargs) if conversion is None else (_Tensor.to, {**kwargs, **conversion})


class SeenCalls:
    """The calls of functions of tensors in runs of forward."""

    def __init__(self) -> None:
        self._first: list[tuple[Any, ...] | None] = []  # None: a call that computes nothing
        self._known = False  # whether a run has ended
        self._at = 0

    def begin(self) -> None:
        """Begin a run of forward."""
        self._at = 0
        if not self._known:
            self._first.clear()

    def end(self) -> bool:
        """End a run of forward. Returns whether it made all calls of the first run that compute."""
        whole = not self._known or self._next() == len(self._first)
        self._known = True
        return whole

    def _next(self) -> int:
        """Return the position of the next call of the first run that computes."""
        while self._at < len(self._first) and self._first[self._at] is None:
            self._at += 1
        return self._at

    def without(self, parts: list[tuple[int, int]]) -> SeenCalls:
        """Return the calls of the first run without some ranges, in order."""
        remaining = SeenCalls()
        remaining._known, at = self._known, 0
        for start, end in [*parts, (len(self._first), len(self._first))]:
            remaining._first += self._first[at:start]
            at = end
        return remaining

    def differs(self, function: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> str:
        """Compare a call with the first run. Returns a description of the difference, or ""."""
        if function in _METADATA:
            if not self._known:
                self._first.append(None)
            return ""
        call = (
            getattr(function, "__qualname__", None) or str(function),
            *(word for part in (*args, kwargs) for word in _words(part, 0)),
        )
        if not self._known:
            self._first.append(call)
            return ""
        at = self._next()
        self._at += 1
        before = self._first[at] if at < len(self._first) else None
        return "" if before == call else f"{_shown(before)} in one call, {_shown(call)} in the next"


def _words(value: Any, depth: int) -> Iterator[Any]:
    """The comparable part of an argument: numbers and shapes, never contents of tensors."""
    if isinstance(value, torch.Tensor):
        yield f"tensor{list(value.shape)}"
    elif isinstance(value, float):
        yield float.__repr__(value)  # nan equals nan here; a live attribute refuses to give its number
    elif isinstance(value, int) and not isinstance(value, bool):
        yield int.__pos__(value)  # of a traced size, without a record
    elif isinstance(value, _PLAIN):
        yield value
    elif issubclass(kind_of(value), tuple | list) and depth < _DEPTH:
        yield len(value)
        for item in value:
            yield from _words(item, depth + 1)
    elif kind_of(value) is slice:
        yield from _words((value.start, value.stop, value.step), depth)
    elif issubclass(kind_of(value), dict) and depth < _DEPTH:
        for key, item in value.items():
            yield str(key)
            yield from _words(item, depth + 1)
    else:
        yield kind_of(value).__name__


def _shown(call: tuple[object, ...] | None) -> str:
    if call is None:
        return "nothing"
    name, *words = call
    return f"{name}({', '.join(str(word) for word in words[:8])})"
