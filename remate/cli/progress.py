"""Progress of a long command, on stderr, only for a person at a terminal, from the first moment."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from remate_runtime.support.plain_text import plain

_BETWEEN = 0.03  # seconds from one text to the next: more cannot be read


class Reporter:
    """Called as `reporter(text)` while something runs: one line that is rewritten, and gone at the end. Without colours
    or escape sequences: every terminal shows it."""

    def __init__(self, quiet: bool = False) -> None:
        self._wanted = not quiet and sys.stderr.isatty()
        self._next = 0.0
        self._shown = 0  # letters on the line

    def __call__(self, text: str) -> None:
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + _BETWEEN
            self._write(plain(text)[: shutil.get_terminal_size().columns - 1])

    def _write(self, text: str) -> None:
        print("\r" + text.ljust(self._shown), end="\r" if not text else "", file=sys.stderr, flush=True)
        self._shown = len(text)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown:
            self._write("")
