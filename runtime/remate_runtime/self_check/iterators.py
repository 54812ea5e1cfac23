"""Iterators that a forward may advance (`next(self.steps)`), and which of them can be restored."""

from __future__ import annotations

import copy
import itertools
from contextlib import suppress
from typing import Any

from ..format.json_values import is_tuple

_PLAIN = (itertools.count, itertools.repeat, type(iter([])), type(iter(())), type(iter(range(0))))


class Iterators:
    """Copies of iterators.

    Attributes:
        missed: Kinds of iterators that cannot be copied, and that remain advanced.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any, Any]] = {}
        self.missed: set[str] = set()

    def note(self, value: object) -> None:
        """Record the position of `value` if it is an iterator."""
        kind = type(value)
        if not hasattr(kind, "__next__") or id(value) in self._copies:
            return
        with suppress(Exception):  # newer versions of Python do not copy iterators of itertools
            if issubclass(kind, _PLAIN):
                self._copies[id(value)] = value, copy.copy(value), value.__reduce__()
                return
            if issubclass(kind, itertools.cycle):
                self._copies[id(value)] = value, _cycle(value), None
                return
        self.missed.add(kind.__name__)

    def fresh(self, value: object) -> Any:
        """Return the replacement for `value`: itself, or its copy if it may have advanced."""
        known = self._copies.get(id(value))
        if known is None or known[0] is not value or _same(value, known[2]):
            return value
        return known[1]


def _cycle(value: Any) -> Any:
    _, (iterator,), (saved, ended) = value.__reduce__()
    cycle: Any = itertools.cycle(copy.copy(iterator))
    cycle.__setstate__((list(saved), ended))
    return cycle


def _same(value: Any, was: Any) -> bool:
    """Return whether an iterator is at its recorded position, in the same object."""
    if was is None:
        return False
    now = value.__reduce__()
    return len(now) == len(was) and all(map(_equal, now, was))


def _equal(now: object, was: object) -> bool:
    if is_tuple(now) and is_tuple(was):
        return len(now) == len(was) and all(map(_equal, now, was))
    return now is was or (isinstance(now, int | float) and now == was)
