"""Progress of long work on stderr, for a person who waits: after three seconds, and in pipes and logs, too."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal

from remate_runtime.support.plain_text import plain

Progress = Callable[[str], None]
Told = Progress | Literal["auto"] | None
_AFTER = 3.0  # seconds of silence: what is over by then needs no word
_BETWEEN = 0.03  # seconds from one text to the next at a terminal: more cannot be read
_APART = 10.0  # seconds from one line to the next elsewhere


class Waiting:
    """Called with a line of text now and then. At a terminal it is one line, rewritten, gone at the end; elsewhere a
    line of its own now and then."""

    def __init__(self, after: float = _AFTER, between: float = _BETWEEN, prefix: str = "remate: ") -> None:
        self._began, self._prefix = time.monotonic(), prefix
        self._next, self._between = self._began + after, between
        self._shown = 0  # letters on the line

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
        """Take the line away."""
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        print("\r" + text.ljust(self._shown), end="\r" if not text else "", file=sys.stderr, flush=True)
        self._shown = len(text)


@contextlib.contextmanager
def telling(progress: Told) -> Iterator[Progress | None]:
    """What to call with lines of text: what was given, or, for "auto", a `Waiting`."""
    if progress != "auto":
        yield progress
        return
    waiting = Waiting()
    try:
        yield waiting
    finally:
        waiting.end()


def aloud(progress: Told, say: Progress | None) -> Progress:
    """What to call with what a person ought to know whenever it is found; `say` is what `telling` gave."""
    if progress == "auto":
        return lambda text: print(f"remate: {plain(text)}", file=sys.stderr, flush=True)
    return say or (lambda text: None)
