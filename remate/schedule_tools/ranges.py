"""The maximum of any range of numbers, in constant time after one preparation."""

from __future__ import annotations

from collections.abc import Sequence


class Maxima:
    """Maximum of every range whose length is a power of two. Two of them cover any range."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._levels = [list(numbers)]
        width = 1
        while 2 * width <= len(numbers):
            level = self._levels[-1]
            self._levels.append(list(map(max, level, level[width:])))
            width *= 2

    def within(self, first: int, last: int) -> int:
        """The largest of `numbers[first : last + 1]`, which is not empty."""
        level = (last - first + 1).bit_length() - 1
        return max(self._levels[level][first], self._levels[level][last + 1 - (1 << level)])
