"""State of iterators, arrays and context variables, which are neither containers nor objects of the user's classes."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from remate_runtime.staleness import NONE, array_hash, inner, is_array, is_bytes_of_array, may_change

_ITERATORS = frozenset({"builtins", "itertools"})


def has_state(value: object) -> bool:
    """Whether `state_of` can describe the value."""
    if isinstance(value, types.GeneratorType) or is_array(value):
        return True
    if issubclass(type(value), Iterator):
        return type(value).__module__ in _ITERATORS
    return may_change(value) and type(value).__module__ not in ("collections", "builtins") and inner(value) is not NONE


def state_of(value: object) -> str:
    """Return a text that changes when the value would give other results; "" if unknown."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return "ended" if frame is None else f"{frame.f_lasti} { {n: _word(v) for n, v in frame.f_locals.items()} }"
    if is_array(value):
        return array_hash(value) if is_bytes_of_array(value) else repr(inner(value))
    return _word(value) if issubclass(type(value), Iterator) else repr(inner(value))


def slots_of(value: object) -> dict[str, Any]:
    """Return the values of an object's `__slots__`."""
    names = (name for base in type(value).__mro__ for name in _named(vars(base).get("__slots__", ())))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _named(slots: Any) -> Iterator[str]:
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return (name for name in names if name not in ("__dict__", "__weakref__"))


def _word(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if not isinstance(value, Iterator):
        return repr(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns that iterators will not be pickled
        try:
            return repr(value.__reduce__())
        except Exception:
            return ""
