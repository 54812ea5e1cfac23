"""The values that a forward can reach directly from a value: attributes, items, and what code names."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..staleness.ownership import is_own, is_own_function

# Instances of these are not followed: they contain no state of a model, or their libraries manage it.
_CLOSED = frozenset(
    """abc asyncio builtins concurrent contextlib ctypes enum functools inspect io logging multiprocessing numpy
    pathlib re remate remate_runtime subprocess sys threading torch typing weakref _io _thread""".split()
)
_OPENED = frozenset(
    {"collections", "types", "argparse"}
)  # modules of Python itself: UserDict, SimpleNamespace, Namespace


def is_open(kind: type) -> bool:
    """Return whether the attributes of a class's instances are followed."""
    if issubclass(kind, nn.Module):
        return True
    top = kind.__module__.partition(".")[0]
    return top in _OPENED or (top not in _CLOSED and top != "random")


def slots_of(value: object) -> dict[str, Any]:
    """Return the values of `__slots__`."""
    values: dict[str, Any] = {}
    for base in type(value).__mro__:
        named = vars(base).get("__slots__", ())
        for name in (named,) if isinstance(named, str) else named:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                values[name] = getattr(value, name)
    return values


def plain_attributes(kind: type) -> dict[str, Any]:
    """Return the attributes of a class of the user's except methods and descriptors."""
    return {
        name: value for name, value in vars(kind).items() if not name.startswith("__") and not _is_descriptor(value)
    }


def _is_descriptor(value: object) -> bool:
    return hasattr(type(value), "__get__")


def methods(kind: type) -> Iterator[types.FunctionType]:
    """Yield the functions that a class defines."""
    for value in vars(kind).values():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(inner, types.FunctionType):
            yield inner


def is_followed(value: object) -> bool:
    """Return whether a function or class is the user's own. Libraries' state is not followed."""
    return is_own(value.__module__ or "") if isinstance(value, type) else is_own_function(value)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Return the globals and attributes that a function and its inner functions read or write."""
    inner = (names_in(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)
