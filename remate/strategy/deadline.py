"""The clock and Ctrl-C of one call of the planner.

By default no clock decides anything: effort is counted (`effort`), so results do not depend on the load of the machine.
A limit in seconds is a safety net.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from ..interrupts import Finishing


class Deadline:
    """Shared by all parts of one call. Use it in a `with` statement: inside, Ctrl-C asks the search to end, and the
    best schedule so far is used; pressed a second time, it does what it does outside.

    time_limit: seconds from now, None for no limit. progress: called with one line of text now and then.
    interrupted: Ctrl-C was pressed. struck: the limit has ended something.
    """

    def __init__(self, time_limit: float | None = None, progress: Callable[[str], None] | None = None) -> None:
        self.progress = progress
        self.struck = False
        self._at = None if time_limit is None else time.monotonic() + time_limit
        self._keys = Finishing()

    def __enter__(self) -> Deadline:
        self._keys.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._keys.__exit__(kind, error, at)

    @property
    def interrupted(self) -> bool:
        return self._keys.pressed

    def interrupt(self) -> None:
        """What Ctrl-C does: asks the search to end."""
        self._keys.pressed = True

    def remaining(self) -> float:
        """Seconds left, infinite without a limit."""
        return float("inf") if self._at is None else max(0.0, self._at - time.monotonic())

    def stopped(self) -> bool:
        """Whether to end with what there is."""
        if self.remaining() <= 0:
            self.struck = True
        return self.interrupted or self.struck

    def say(self, text: str) -> None:
        """Tell the progress, if anyone listens."""
        if self.progress is not None:
            self.progress(text)
