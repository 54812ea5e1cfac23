"""The functions of functools.lru_cache of this process, whose results a trace must not leave behind."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .kinds import kind_of

_KIND: Any = vars(functools)["_lru_cache_wrapper"]  # the private types of these functions and their statistics
_STATISTICS: Any = vars(functools)["_CacheInfo"]


def sizes() -> list[tuple[Any, int]]:
    """Return every function of functools.lru_cache, and its number of results."""
    return [(function, function.cache_info().currsize) for function in _functions().all()]


def forget(before: list[tuple[Any, int]], is_traced: Callable[[Any], bool]) -> None:
    """Clear the functions of functools.lru_cache that hold tensors of a trace.

    before: the result of `sizes` before the trace. is_traced: whether a value is or contains such a tensor."""
    for function, size in before:
        if function.cache_info().currsize != size and any(is_traced(value) for value in _held(function)):
            function.cache_clear()


class _Functions:
    """Finds the functions. The search through all objects takes as long as the trace of a small model, so it is
    repeated only when there may be others: each function refers to its type and to the type of its statistics, and both
    count their references. Two counts, because something else may drop a reference to one of them."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._others: tuple[int, int] | None = None  # references to the two types that no function has
        self._frozen = 0  # objects that `gc.freeze` had set aside after the last search among them

    def all(self) -> list[Any]:
        known = list(self._known)
        if self._others is None or self._others != _others(len(known)):
            known = self._searched()
            self._known = weakref.WeakSet(known)
            self._others = _others(len(known)) if _are_counted() else None
        return known

    def _searched(self) -> list[Any]:
        """Return all functions. The collector lists no objects that `gc.freeze` set aside, as training scripts do."""
        frozen = gc.get_freeze_count()
        if frozen <= self._frozen:  # functions among these objects are known
            self._frozen = frozen
            return list({*self._known, *_listed()})
        gc.unfreeze()
        try:
            return _listed()
        finally:
            gc.collect()  # what is garbage now would stay forever
            gc.freeze()
            self._frozen = gc.get_freeze_count()


def _listed() -> list[Any]:
    return [each for each in gc.get_referrers(_KIND) if type(each) is _KIND]


@functools.cache
def _functions() -> _Functions:
    return _Functions()


def _others(functions: int) -> tuple[int, int]:
    return sys.getrefcount(_KIND) - functions, sys.getrefcount(_STATISTICS) - functions


def _are_counted() -> bool:
    """Whether a reference counts at once. A build of Python without the global lock postpones that."""
    before = _others(0)
    function = functools.lru_cache(_held)
    return type(function) is _KIND and _others(1) == before


def _held(function: object) -> Iterator[Any]:
    """What the function refers to, with its arguments and results."""
    for part in gc.get_referents(function):
        if kind_of(part) is dict:
            for value in part.values():
                yield from (value, *gc.get_referents(value))
        else:
            yield part
