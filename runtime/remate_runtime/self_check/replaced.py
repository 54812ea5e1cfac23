"""Functions of classes and modules that one thread runs others in place of.

Several threads may run a self-check at once. Each has functions of its own, other threads run what was there, and the
thread that ends last puts it back.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

Function = Callable[..., Any]


class _Place:
    """An attribute while some thread replaces it. of_thread: the functions of each thread, the innermost last."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._attribute: Any = vars(owner)[name]
        self.own: Function = getattr(owner, name)
        self.of_thread: dict[int, list[Function]] = {}

        @functools.wraps(self.own)
        def run(*args: Any, **kwargs: Any) -> Any:
            functions = self.of_thread.get(threading.get_ident())
            return (functions[-1] if functions else self.own)(*args, **kwargs)

        setattr(owner, name, staticmethod(run) if isinstance(vars(owner)[name], staticmethod) else run)

    def put_back(self) -> None:
        """Let the owner have its attribute again."""
        setattr(self._owner, self._name, self._attribute)


_LOCK = threading.Lock()
_PLACES: dict[tuple[Any, str], _Place] = {}


@contextmanager
def replaced_here(owner: Any, name: str, around: Callable[[Function], Function]) -> Generator[None]:
    """Let this thread run another function of a class or module.

    Args:
        owner: The class or module, which has the attribute itself.
        name: The attribute: a function, or a static method.
        around: Takes what this thread runs now, and returns what it runs instead.
    """
    place_of, thread = (owner, name), threading.get_ident()
    with _LOCK:
        if place_of not in _PLACES:
            _PLACES[place_of] = _Place(owner, name)
        place = _PLACES[place_of]
        functions = place.of_thread.setdefault(thread, [])
        functions.append(around(functions[-1] if functions else place.own))
    try:
        yield
    finally:
        with _LOCK:
            functions.pop()
            if not functions:
                del place.of_thread[thread]
            if not place.of_thread:
                _PLACES.pop(place_of).put_back()
