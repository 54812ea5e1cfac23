"""Items that no other item equals or beats in every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def undominated(given: Iterable[Item], figures: Callable[[Item], tuple[int, ...]]) -> list[Item]:
    """Return items that no other item equals or beats in every figure, sorted by their figures.

    Of items with equal figures, the first one stays.

    Args:
        given: The items.
        figures: Returns the figures of an item; less is better.
    """
    front: list[Item] = []
    for item in sorted(given, key=figures):
        own = figures(item)
        rivals = front[-1:] if len(own) == 2 else front  # of two figures, the latest has the least second one
        if not any(all(x <= y for x, y in zip(figures(k), own, strict=True)) for k in rivals):
            front.append(item)
    return front
