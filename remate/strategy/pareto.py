"""What no other thing equals or betters in every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Some = TypeVar("Some")


def undominated(given: Iterable[Some], figures: Callable[[Some], tuple[int, ...]]) -> list[Some]:
    """Those of `given` that none of the others equals or betters in every figure, less being better, by their figures in order. Of
    things with the same figures, the first."""
    kept: list[Some] = []
    for one in sorted(given, key=figures):
        mine = figures(one)
        rivals = kept[-1:] if len(mine) == 2 else kept  # of two figures, the latest has the least second one
        if not any(all(x <= y for x, y in zip(figures(k), mine, strict=True)) for k in rivals):
            kept.append(one)
    return kept
