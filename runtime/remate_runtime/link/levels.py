"""Bytes in use at the moments of a step, with fast updates of whole ranges. Does not require torch."""

from __future__ import annotations

from collections.abc import Sequence


class MemoryLevels:
    """A segment tree of maxima, without propagation. An update of a range takes time logarithmic in its length."""

    def __init__(self, held: Sequence[int]) -> None:
        """Create the tree. held: bytes at each moment; at least one moment."""
        self._count = count = len(held)
        self._raised = [0] * count  # what a node adds to all its descendants
        self._most = [0] * count + list(held)
        for at in range(count - 1, 0, -1):
            self._most[at] = max(self._most[2 * at], self._most[2 * at + 1])

    @property
    def peak(self) -> int:
        """Return the most bytes at any moment."""
        return self._most[1]

    def add(self, start: int, end: int, nbytes: int) -> None:
        """Add bytes to the moments from `start` to `end`, without `end`."""
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
        """Update the maxima of all ancestors of a node."""
        while at > 1:
            at >>= 1
            self._most[at] = max(self._most[2 * at], self._most[2 * at + 1]) + self._raised[at]
