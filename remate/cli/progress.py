"""Progress of a long command on stderr: at once at a terminal, after some seconds elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from ..api.progress import Waiting


class Reporter:
    """Callable that shows progress: `reporter(text)`. It uses no colours and no escape sequences."""

    def __init__(self, quiet: bool = False) -> None:
        at_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._waiting = None if quiet else Waiting(after=0.0, prefix="") if at_terminal else Waiting()

    def __call__(self, text: str) -> None:
        if self._waiting is not None:
            self._waiting(text)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._waiting is not None:
            self._waiting.end()
