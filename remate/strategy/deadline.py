"""The limits of one call of the planner: work of each strategy, seconds, Ctrl-C.

By default no clock decides anything: work is counted in visits (`effort`), so results do not depend on the load of the
machine. A limit in seconds is a safety net.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType

from ..interrupts import Finishing


class Deadline:
    """The end of one call, shared by all its parts.

    Use it in a `with` statement. Inside, the first Ctrl-C ends the search, and the best schedule so far is used. The
    second one has its usual effect.

    Args:
        time_limit: Seconds from now; None for no limit.
        progress: Called with one line of text at a time.

    Attributes:
        interrupted: Whether Ctrl-C was pressed.
        struck: Whether the limit has ended something.
        spent: Visits of all strategies and bounds.
        allowed: Visits after which the call ends; infinite by default.
    """

    def __init__(self, time_limit: float | None = None, progress: Callable[[str], None] | None = None) -> None:
        self.progress = progress
        self.struck = False
        self.spent, self.allowed = 0.0, float("inf")
        self._left = float("inf")  # visits of the current strategy or bound
        self._at = None if time_limit is None else time.monotonic() + time_limit
        self._keys = Finishing()

    def __enter__(self) -> Deadline:
        self._keys.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._keys.__exit__(kind, error, at)

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._keys.pressed

    def interrupt(self) -> None:
        """End the search as Ctrl-C does."""
        self._keys.pressed = True

    def remaining(self) -> float:
        """Return the seconds left; infinite without a limit."""
        return float("inf") if self._at is None else max(0.0, self._at - time.monotonic())

    @contextmanager
    def limited(self, visits: float) -> Generator[None]:
        """Limit the work of one strategy or bound. It shares the limit of the strategy that runs it, if any."""
        before = self._left
        allowed = self._left = min(before, visits)
        try:
            yield
        finally:
            self._left = before - (allowed - self._left)

    def spend(self, visits: float) -> None:
        """Count work of the current strategy or bound."""
        self._left -= visits
        self.spent += visits

    def left(self) -> float:
        """Return the visits that remain for the current strategy or bound."""
        return max(0.0, min(self._left, self.allowed - self.spent))

    def stopped(self) -> bool:
        """Return whether a strategy or bound must end with its best result so far."""
        return self.ended() or self._left <= 0

    def ended(self) -> bool:
        """Return whether the whole call must end with its best result so far."""
        if self.remaining() <= 0:
            self.struck = True
        return self.interrupted or self.struck or self.spent > self.allowed

    def say(self, text: str) -> None:
        """Report one line of progress."""
        if self.progress is not None:
            self.progress(text)
