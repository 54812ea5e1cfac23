"""Progress of long work on stderr, after three seconds, at terminals and in logs."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Generator
from typing import Literal

from remate_runtime.support.plain_text import plain

Progress = Callable[[str], None]
ProgressOption = Progress | Literal["auto"] | None
_AFTER = 3.0  # seconds until the first text: shorter work needs none
_BETWEEN = 0.03  # seconds between texts at a terminal
_APART = 10.0  # seconds between lines elsewhere


class Waiting:
    """Callable that shows lines of text: on one rewritten line at a terminal, as a line every 10 seconds elsewhere."""

    def __init__(self, after: float = _AFTER, between: float = _BETWEEN, prefix: str = "remate: ") -> None:
        self._began, self._prefix = time.monotonic(), prefix
        self._next, self._between = self._began + after, between
        self._shown = 0  # characters on the line

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if sys.stderr is None or now < self._next:
            return
        if sys.stderr.isatty():
            self._next = now + self._between
            self._write(f"{self._prefix}{plain(text)}"[: shutil.get_terminal_size().columns - 1])
        else:
            self._next = now + _APART
            print(f"remate: {now - self._began:.0f} s: {plain(text)}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        print("\r" + text.ljust(self._shown), end="\r" if not text else "", file=sys.stderr, flush=True)
        self._shown = len(text)


def silent(text: str) -> None:
    """Ignore a line of progress."""


@contextlib.contextmanager
def telling(progress: ProgressOption) -> Generator[Progress | None]:
    """Yield the function that gets lines of progress. "auto" is a `Waiting`."""
    if progress != "auto":
        yield progress
        return
    waiting = Waiting()
    try:
        yield waiting
    finally:
        waiting.end()


def aloud(progress: ProgressOption, say: Progress | None) -> Progress:
    """The function for important messages, which are printed at once. say: the result of `telling`."""
    if progress == "auto":
        return lambda text: print(f"remate: {plain(text)}", file=sys.stderr, flush=True)
    return say or silent
