"""Bytes held over the moments of a step, of which whole ranges can be raised quickly. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence


class MemoryLevels:
    """A tree of maxima over the moments (a segment tree without propagation): raising a range of `n` moments takes
    about log n steps."""

    def __init__(self, held: Sequence[int]) -> None:
        """held: bytes by moment; at least one."""
        self._count = count = len(held)
        self._raised = [0] * count  # all that is below a node, and not noted there
        self._most = [0] * count + list(held)
        for at in range(count - 1, 0, -1):
            self._most[at] = max(self._most[2 * at], self._most[2 * at + 1])

    @property
    def peak(self) -> int:
        """The most bytes at any moment."""
        return self._most[1]

    def add(self, start: int, end: int, nbytes: int) -> None:
        """Let the moments from `start` up to `end` hold so many bytes more."""
        if start >= end:
            return
        left, right = start + self._count, end + self._count
        while left < right:
            if left & 1:
                self._raise(left, nbytes)
                left += 1
            if right & 1:
                right -= 1
                self._raise(right, nbytes)
            left, right = left >> 1, right >> 1
        self._update(start + self._count)
        self._update(end - 1 + self._count)

    def _raise(self, at: int, nbytes: int) -> None:
        self._most[at] += nbytes
        if at < self._count:
            self._raised[at] += nbytes

    def _update(self, at: int) -> None:
        """Let what is above a node know its maximum."""
        while at > 1:
            at >>= 1
            self._most[at] = max(self._most[2 * at], self._most[2 * at + 1]) + self._raised[at]
