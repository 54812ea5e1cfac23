"""Ctrl-C during a search: the first one ends the search and keeps its result, the second one ends the program."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Finishing:
    """Inside, the first Ctrl-C only sets `pressed`, because what took long is found and needs but to be written, or
    looks at `pressed` itself; the second one does what it does outside. Where Ctrl-C is ignored (what a script starts
    in the background), it stays ignored."""

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
