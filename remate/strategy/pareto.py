"""What no other thing equals or betters in every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Some = TypeVar("Some")


def undominated(given: Iterable[Some], figures: Callable[[Some], tuple[int, ...]]) -> list[Some]:
    """Items that no other equals or betters in every figure (less is better), sorted by their figures. Of items with
    equal figures, the first."""
    front: list[Some] = []
    for item in sorted(given, key=figures):
        own = figures(item)
        rivals = front[-1:] if len(own) == 2 else front  # of two figures, the latest has the least second one
        if not any(all(x <= y for x, y in zip(figures(k), own, strict=True)) for k in rivals):
            front.append(item)
    return front
