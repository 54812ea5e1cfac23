"""Access to single lines of a large file without a list of all lines. A file can have sixty million."""

from __future__ import annotations

_PIECE = 1 << 16


class Lines:
    """The lines of UTF-8 text.

    Requests in ascending order read the text once. The latest line is cached, because faults often share a line.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._number, self._start = 1, 0  # a line and the offset of its first byte
        self._line: str | None = None

    def line(self, number: int) -> str | None:
        """Return a line by its 1-based number, without its line break, or None beyond the end."""
        if number < 1:
            return None
        if number < self._number:
            self._number, self._start, self._line = 1, 0, None
        if number > self._number:
            start = self._start_of(number)
            if start is None:
                return None
            self._number, self._start, self._line = number, start, None
        if self._line is None:
            end = self._data.find(b"\n", self._start)
            self._line = self._data[self._start : len(self._data) if end < 0 else end].decode(errors="replace")
        return self._line

    def _start_of(self, number: int) -> int | None:
        at, line = self._start, self._number
        while at < len(self._data):
            breaks = self._data.count(b"\n", at, at + _PIECE)
            if line + breaks >= number:
                break
            at, line = at + _PIECE, line + breaks
        for _ in range(number - line):
            at = self._data.find(b"\n", at) + 1
            if not at:
                return None
        return at
