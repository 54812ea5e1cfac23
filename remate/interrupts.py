"""Ctrl-C during a search: the first one ends the search and keeps its result, the second one ends the program."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Finishing:
    """Within this context, the first Ctrl-C only sets `pressed`; the second one has its usual effect.

    It is for code that polls `pressed`, or only has to write a finished result. If Ctrl-C is ignored (in processes that
    a script starts in the background), it stays ignored.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._old: Any = None

    def __enter__(self) -> Finishing:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._old = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed and callable(self._old):
            self._old(number, frame)
        self.pressed = True
