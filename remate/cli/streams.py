"""Standard output and standard error of a command: a reader that went away, an alphabet that lacks a letter, a full
disk."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_COLOURS = {"error": "1;31", "warning": "1;33", "hint": "36", "next": "36"}
_WORD = re.compile(r"^((?:[^\s:]+:\d+:\d+: )?(?: {2})?)(error|warning|hint|next)(\[[A-Z]\d+\])?(?=[: ])", re.MULTILINE)
_PLAIN = str.maketrans({"…": "...", "→": "->", "·": ".", "–": "-", "×": "x"})


class Stream:
    """A text stream to print to. What it has besides `write` and `flush` is that of the stream behind it.

    When the reader of a pipe goes away (`remate show S.json | head`), the rest is dropped and the command goes on: its
    exit status means what it means without the pipe. A letter that the encoding lacks is written plainly.
    """

    def __init__(self, behind: Any, name: str) -> None:
        self._behind, self._name = behind, name
        self._coloured = _wants_colour(behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    def write(self, text: str) -> int:
        """Raises OSError, which names the stream, if it cannot take more (a file on a full disk)."""
        with self._guarded():
            self._behind.write(self._encodable(_coloured(text) if self._coloured else text))
        return len(text)

    def write_data(self, data: bytes) -> None:
        """A file instead of text. Raises OSError as `write` does."""
        with self._guarded():
            self._behind.flush()
            self._behind.buffer.write(data)
            self._behind.buffer.flush()

    def flush(self) -> None:
        with self._guarded():
            self._behind.flush()

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._behind, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
        return text

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._drop()
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, self._name) from error

    def _drop(self) -> None:
        """Let all that comes, and what is in the buffer, go nowhere."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._behind.fileno())
            os.close(nowhere)


def _wants_colour(stream: Any) -> bool:
    """A terminal that is not told otherwise: https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _coloured(text: str) -> str:
    """The word that a line begins with, or that follows its place in a file, in the colour that people know it by."""
    return _WORD.sub(lambda found: f"{found[1]}\x1b[{_COLOURS[found[2]]}m{found[2]}{found[3] or ''}\x1b[0m", text)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Print through `Stream` inside. A stream that is closed (`>&-`) stays so: Python prints nothing there."""
    old = sys.stdout, sys.stderr
    if sys.stdout is not None:
        sys.stdout = Stream(sys.stdout, "standard output")
    if sys.stderr is not None:
        sys.stderr = Stream(sys.stderr, "standard error")
    try:
        yield
    finally:
        sys.stdout, sys.stderr = old


@contextmanager
def unguarded_streams() -> Iterator[None]:
    """Inside, the streams are as they were outside of `guarded_streams`: for programs of other people."""
    old = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (one._behind if isinstance(one, Stream) else one for one in old)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = old
