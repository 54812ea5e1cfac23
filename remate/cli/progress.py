"""Progress of a long command, on stderr, only for a person at a terminal and only once it has taken a while."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

PATIENCE = 2.0  # seconds without any word


class Reporter:
    """Called as `reporter(text)` while something runs: one line that is rewritten, and gone at the end."""

    def __init__(self, quiet: bool = False) -> None:
        self._wanted = not quiet and sys.stderr.isatty()
        self._since = time.monotonic()
        self._status: Status | None = None

    def __call__(self, text: str) -> None:
        if not self._wanted or time.monotonic() - self._since < PATIENCE:
            return
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
