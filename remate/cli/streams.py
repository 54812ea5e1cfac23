"""Standard output and standard error of a command: a reader that went away, an alphabet that lacks a letter, a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PLAIN = str.maketrans({"…": "...", "→": "->", "·": ".", "–": "-", "×": "x"})


class Stream:
    """A text stream to print to. What it has besides `write` and `flush` is that of the stream behind it.

    When the reader of a pipe goes away (`remate show S.json | head`), the rest is dropped and the command goes on: its
    exit status means what it means without the pipe. A letter that the encoding lacks is written plainly.
    """

    def __init__(self, behind: Any, name: str) -> None:
        self._behind, self._name = behind, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    def write(self, text: str) -> int:
        """Raises OSError, which names the stream, if it cannot take more (a file on a full disk)."""
        with self._guarded():
            self._behind.write(self._encodable(text))
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
