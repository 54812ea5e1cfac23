"""Standard output and standard error of a command, with closed pipes, missing characters and full disks handled."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

_COLOURS = {"error": "1;31", "warning": "1;33", "hint": "36", "next": "36"}
_WORD = re.compile(r"^((?:[^\s:]+:\d+:\d+: )?(?: {2})?)(error|warning|hint|next)(\[[A-Z]\d+\])?(?=[: ])", re.MULTILINE)
_PLAIN = str.maketrans({"…": "...", "→": "->", "·": ".", "–": "-", "×": "x"})


class Stream:
    """A text stream that wraps another one.

    If the reader of a pipe closes it (`remate show S.json | head`), the rest is dropped and the command continues, with
    the same exit status. Characters that the encoding lacks are replaced.
    """

    def __init__(self, wrapped: Any, name: str) -> None:
        self.wrapped, self._name = wrapped, name
        self._coloured = _wants_colour(wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def write(self, text: str) -> int:
        """Write a text. Raises OSError, which names the stream, for example on a full disk."""
        with self._guarded():
            self.wrapped.write(self._encodable(_coloured(text) if self._coloured else text))
        return len(text)

    def write_data(self, data: bytes) -> None:
        """Write bytes. Raises OSError as `write` does."""
        with self._guarded():
            self.wrapped.flush()
            self.wrapped.buffer.write(data)
            self.wrapped.buffer.flush()

    def flush(self) -> None:
        with self._guarded():
            self.wrapped.flush()

    def _encodable(self, text: str) -> str:
        encoding = getattr(self.wrapped, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
        return text

    @contextmanager
    def _guarded(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._drop()
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, self._name) from error

    def _drop(self) -> None:
        """Redirect further output, and the buffer, to the null device."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.wrapped.fileno())
            os.close(nowhere)


def _wants_colour(stream: Any) -> bool:
    """Whether to use colours. See https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _coloured(text: str) -> str:
    """Colour the words `error`, `warning`, `hint` and `next` at the start of lines."""
    return _WORD.sub(lambda match: f"{match[1]}\x1b[{_COLOURS[match[2]]}m{match[2]}{match[3] or ''}\x1b[0m", text)


@contextmanager
def guarded_streams() -> Generator[None]:
    """Use `Stream` for both streams inside the block. A closed stream (`>&-`) stays closed."""
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
def unguarded_streams() -> Generator[None]:
    """Restore the original streams inside the block, for the programs of users."""
    old = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream.wrapped if isinstance(stream, Stream) else stream for stream in old)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = old
