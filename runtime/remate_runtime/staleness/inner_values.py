"""The contents of values whose classes are neither the user's nor containers.

These are arrays of NumPy and values of Python's standard library (`Decimal`, `timedelta`, `array.array`, `UserList`).
For the latter, what `pickle` would write counts. Variables of a context or thread have their values in the current one.
Members of enumerations may have attributes, and values that change.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import sys
import threading
from contextvars import ContextVar
from typing import Any

import torch

from ..operator_calls.overloads import is_fake

NONE: Any = object()
_OF_VALUES = frozenset(
    "array collections datetime decimal fractions ipaddress pathlib statistics string uuid zoneinfo".split()
)
_PICKLE = 4  # the protocol


def is_array(value: object) -> bool:
    """Return whether a value is an array or a scalar of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def is_bytes_of_array(value: Any) -> bool:
    """Return whether an array consists of its bytes only: no objects in it, no mask."""
    numpy: Any = sys.modules["numpy"]
    return not value.dtype.hasobject and (type(value) is numpy.ndarray or isinstance(value, numpy.generic))


def array_hash(value: Any) -> str:
    """Return a hash of an array's dtype, shape and bytes."""
    hashed = hashlib.sha256(f"{value.dtype}{list(value.shape)}".encode())
    hashed.update(value.tobytes())
    return hashed.hexdigest()[:16]


def bytes_of(tensor: torch.Tensor) -> bytes | tuple[int, ...]:
    """Return the content of a tensor in host memory, for comparison; elsewhere what changes with most writes."""
    if tensor.layout is not torch.strided or is_fake(tensor):
        return (id(tensor),)
    if tensor.device.type != "cpu":
        storage: Any = tensor.untyped_storage()
        return storage._cdata, -1 if tensor.is_inference() else tensor._version
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def inner(value: Any) -> Any:
    """Return what determines a value, as tuples, lists and simpler values; NONE if that is not known."""
    if is_array(value):
        numpy: Any = sys.modules["numpy"]
        return (str(value.dtype), value.tolist()) if type(value) is numpy.ndarray else _pickled(value)
    if isinstance(value, memoryview):
        return (value.format, value.shape, value.tobytes())
    if isinstance(value, bytearray):
        return (bytes(value),)
    if issubclass(type(value), ContextVar):
        return (_held(value),)
    if isinstance(value, threading.local):  # of the current thread
        return (dict(sorted(vars(value).items())),)
    if isinstance(value, enum.Enum):
        return _of_member(value)
    return _pickled(value) if _top(value) in _OF_VALUES else NONE


def may_change(value: object) -> bool:
    """Return whether a value may change in place. A hashable value cannot, but for some."""
    return isinstance(value, memoryview | ContextVar | threading.local | enum.Enum) or type(value).__hash__ in (
        None,
        object.__hash__,
    )


def _of_member(member: enum.Enum) -> Any:
    """Return the attributes of a member of an enumeration, its value among them; NONE if it has only a plain value."""
    attributes = object.__getattribute__(member, "__dict__").items()
    held = {name: value for name, value in attributes if name == "_value_" or not name.startswith("_")}
    plain = held.keys() <= {"_value_"} and isinstance(member.value, int | float | str | bytes | None)
    return NONE if plain else (held,)


def _held(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:  # not set, and no default
        return None


def _top(value: object) -> str:
    return type(value).__module__.partition(".")[0].lstrip("_")


def _pickled(value: object) -> Any:
    try:
        reduced = value.__reduce_ex__(_PICKLE)
    except Exception:  # not picklable
        return NONE
    if isinstance(reduced, str):
        return (reduced,)
    function, args, state, items, pairs = (*reduced, None, None, None)[:5]
    return (function, args, state, None if items is None else list(items), None if pairs is None else list(pairs))
