"""A greedy choice of pages.

While a slot exceeds the budget, the method pages one of the values that can be away in that slot. It takes the value
with the highest score: bytes times the span of its gap divided by the time of its copies, or the largest value. Values
that the caller prefers come first, then values of at least 64 MiB. A value is away from the first slot that exceeds the
budget to the last one. It therefore leaves as late and returns as early as the budget allows, which gives its copies
the most time to overlap with operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatPage, FlatRecompute, Graph
from remate_runtime.format import PageMemory
from remate_runtime.link import link, simulate

from .gaps import Slots, flat_page, slots

Order = Literal["span", "size"]
ORDERS: tuple[Order, ...] = ("span", "size")
_LARGE = 64 << 20  # bytes of values that are paged before smaller ones: few copies, at full bandwidth
_CORRECTIONS = 4  # retries with a smaller target: the linker can hold slightly more than the slots predict


class Paged(NamedTuple):
    """A schedule with pages, as the simulator judges it. peak: Bytes. time: ns, stalls included."""

    recomputes: tuple[FlatRecompute, ...]
    pages: tuple[FlatPage, ...]
    peak: int
    time: int


class _AwayStretch(NamedTuple):
    """A paged value. gap: Index of the gap. gone, back: Slots."""

    gap: int
    to: PageMemory
    gone: int
    back: int


def page(
    graph: Graph,
    recomputes: Sequence[FlatRecompute],
    budget: int,
    limits: Mapping[PageMemory, int],
    order: Order,
    preferred: Collection[int] = (),
) -> Paged | None:
    """Add pages to recomputations until the step fits.

    Args:
        graph: The step.
        recomputes: Its recomputations.
        budget: Most bytes on the device.
        limits: Most bytes in each memory that values are paged to.
        order: The score that decides which value is paged next.
        preferred: Values that are paged before others.

    Returns:
        The schedule, or None if the greedy choice does not reach the budget.
    """
    linked = link(graph, recomputes)
    step, target = slots(linked, simulate(linked)), budget
    for _ in range(_CORRECTIONS):
        pages = _Greedy(graph, step, limits, order, preferred).fit(target)
        if pages is None:
            return None
        timeline = simulate(link(graph, recomputes, pages))
        if timeline.peak <= budget:
            return Paged(tuple(recomputes), pages, timeline.peak, timeline.time)
        target -= timeline.peak - budget
    return None


class _Greedy:
    def __init__(
        self,
        graph: Graph,
        step: Slots,
        limits: Mapping[PageMemory, int],
        order: Order,
        preferred: Collection[int],
    ) -> None:
        self._graph, self._step, self._order = graph, step, order
        self._room: dict[PageMemory, int] = dict(
            sorted(limits.items(), key=lambda limit: -graph.lanes[limit[0]].out)
        )  # fastest lane first
        self._held = step.held.copy()
        rank = np.isin(step.gaps.values, np.array(sorted(preferred), dtype=np.int64)) * 2
        self._rank = rank + (step.gaps.nbytes >= _LARGE)
        self._free = np.ones(len(step.gaps.values), dtype=bool)

    def fit(self, target: int) -> tuple[FlatPage, ...] | None:
        chosen: list[_AwayStretch] = []
        while True:
            at = int(self._held.argmax())
            if self._held[at] <= target:
                break
            away = self._best_at(at, target)
            if away is None:
                return None
            chosen.append(away)
            self._held[away.gone : away.back] -= self._nbytes(away)
        return self._pages(self._relaxed(chosen, target))

    def _nbytes(self, away: _AwayStretch) -> int:
        return int(self._step.gaps.nbytes[away.gap])

    def _best_at(self, at: int, target: int) -> _AwayStretch | None:
        """Page the value with the highest score among those that can be away in a slot."""
        gaps = self._step.gaps
        most = max(self._room.values(), default=0)
        able = np.flatnonzero(self._free & (gaps.first <= at) & (at < gaps.read) & (gaps.nbytes <= most))
        if not len(able):
            return None
        nbytes = gaps.nbytes[able]
        gap = int(able[int(np.lexsort((gaps.values[able], -self._score(able, nbytes), -self._rank[able]))[0])])
        to: PageMemory = next(memory for memory, room in self._room.items() if gaps.nbytes[gap] <= room)
        self._free[gap] = False
        self._room[to] -= int(gaps.nbytes[gap])
        over = int(gaps.first[gap]) + np.flatnonzero(self._held[gaps.first[gap] : gaps.read[gap]] > target)
        return _AwayStretch(gap, to, int(over[0]), int(over[-1]) + 1)

    def _score(self, able: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        if self._order == "size":
            return nbytes.astype(np.float64)
        gaps, lane = self._step.gaps, self._graph.lanes[next(iter(self._room))]
        span = self._step.begins[gaps.read[able]] - self._step.begins[gaps.first[able]]
        return nbytes * (span + 1.0) / (lane.latency + 1.0 + nbytes * 1e9 / lane.out)

    def _relaxed(self, chosen: list[_AwayStretch], target: int) -> list[_AwayStretch]:
        """Shorten or drop stretches that later choices made unnecessary."""
        gaps, relaxed = self._step.gaps, list[_AwayStretch]()
        for away in chosen:
            self._held[away.gone : away.back] += self._nbytes(away)
            first, read = int(gaps.first[away.gap]), int(gaps.read[away.gap])
            over = first + np.flatnonzero(self._held[first:read] > target)
            if len(over):
                shorter = away._replace(gone=int(over[0]), back=int(over[-1]) + 1)
                self._held[shorter.gone : shorter.back] -= self._nbytes(shorter)
                relaxed.append(shorter)
        return relaxed

    def _pages(self, chosen: list[_AwayStretch]) -> tuple[FlatPage, ...]:
        gaps = self._step.gaps
        ordered = sorted(chosen, key=lambda away: (away.gone, int(gaps.values[away.gap])))
        return tuple(
            flat_page(self._graph, int(gaps.values[away.gap]), away.to, away.gone, away.back, int(gaps.read[away.gap]))
            for away in ordered
        )
