"""The clock and Ctrl-C of one call of the planner. By default no clock decides anything: effort is counted (`effort`), so
that results do not depend on the load of the machine. A limit in seconds is a safety net.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Deadline:
    """Shared by all that one call does. Use it in a `with` statement: inside, Ctrl-C asks the search to end, and the best
    schedule so far is used; pressed again, it does what it does outside.

    time_limit: seconds from now, None for no limit. progress: called with one line of text now and then.
    interrupted: Ctrl-C was pressed. struck: the limit has ended something.
    """

    def __init__(self, time_limit: float | None = None, progress: Callable[[str], None] | None = None) -> None:
        self.progress = progress
        self.interrupted = False
        self.struck = False
        self._at = None if time_limit is None else time.monotonic() + time_limit
        self._old: Any = None

    def __enter__(self) -> Deadline:
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted and callable(self._old):
            self._old(number, frame)
        self.interrupted = True

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
