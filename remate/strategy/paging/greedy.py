"""Which values leave, and when: greedily, until the step fits.

While some slot holds more than the budget, a value that is away there best leaves: bytes times the span of its gap over
the time that its copies take of a lane, or just the largest. It is gone from the first slot on that holds too much, as
late as that allows, and comes back behind the last one, as early as that allows: so the copies have most time beside
the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatPage, FlatRecompute, Graph
from remate_runtime.format import PageMemory
from remate_runtime.link import link, simulate

from .gaps import Slots, flat_page, slots

Order = Literal["span", "size"]
ORDERS: tuple[Order, ...] = ("span", "size")
_CORRECTIONS = 4  # of the aim, where the linker holds a little more than the slots say


class Paged(NamedTuple):
    """A schedule with pages, judged by the simulator. peak: bytes; time: ns, waiting included."""

    recomputes: tuple[FlatRecompute, ...]
    pages: tuple[FlatPage, ...]
    peak: int
    time: int


class _AwayStretch(NamedTuple):
    """A value that leaves. gap: its number; gone, back: slots."""

    gap: int
    to: PageMemory
    gone: int
    back: int


def page(
    graph: Graph, recomputes: Sequence[FlatRecompute], budget: int, limits: Mapping[PageMemory, int], order: Order
) -> Paged | None:
    """Pages on top of these recomputations, so that the device holds at most `budget` bytes, and each memory at most
    its limit; None if the greedy choice finds none. order: which values leave first."""
    linked = link(graph, recomputes)
    step, aim = slots(linked, simulate(linked)), budget
    for _ in range(_CORRECTIONS):
        chosen = _Greedy(graph, step, limits, order).fit(aim)
        if chosen is None:
            return None
        timeline = simulate(link(graph, recomputes, chosen))
        if timeline.peak <= budget:
            return Paged(tuple(recomputes), chosen, timeline.peak, timeline.time)
        aim -= timeline.peak - budget
    return None


class _Greedy:
    def __init__(self, graph: Graph, step: Slots, limits: Mapping[PageMemory, int], order: Order) -> None:
        self._graph, self._step, self._order = graph, step, order
        self._room: dict[PageMemory, int] = dict(
            sorted(limits.items(), key=lambda one: -graph.lanes[one[0]].out)
        )  # the fastest lane first
        self._held = step.held.copy()
        self._free = np.ones(len(step.gaps.values), dtype=bool)

    def fit(self, aim: int) -> tuple[FlatPage, ...] | None:
        chosen: list[_AwayStretch] = []
        while True:
            at = int(self._held.argmax())
            if self._held[at] <= aim:
                break
            away = self._leaving(at, aim)
            if away is None:
                return None
            chosen.append(away)
            self._held[away.gone : away.back] -= self._nbytes(away)
        return self._written(self._relaxed(chosen, aim))

    def _nbytes(self, away: _AwayStretch) -> int:
        return int(self._step.gaps.nbytes[away.gap])

    def _leaving(self, at: int, aim: int) -> _AwayStretch | None:
        """The best value to be away in a slot."""
        gaps = self._step.gaps
        most = max(self._room.values(), default=0)
        able = np.flatnonzero(self._free & (gaps.first <= at) & (at < gaps.read) & (gaps.nbytes <= most))
        if not len(able):
            return None
        nbytes = gaps.nbytes[able]
        gap = int(able[int(np.lexsort((gaps.values[able], -self._score(able, nbytes)))[0])])
        to: PageMemory = next(memory for memory, room in self._room.items() if gaps.nbytes[gap] <= room)
        self._free[gap] = False
        self._room[to] -= int(gaps.nbytes[gap])
        over = int(gaps.first[gap]) + np.flatnonzero(self._held[gaps.first[gap] : gaps.read[gap]] > aim)
        return _AwayStretch(gap, to, int(over[0]), int(over[-1]) + 1)

    def _score(self, able: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        if self._order == "size":
            return nbytes.astype(np.float64)
        gaps, lane = self._step.gaps, self._graph.lanes[next(iter(self._room))]
        span = self._step.begins[gaps.read[able]] - self._step.begins[gaps.first[able]]
        return nbytes * (span + 1.0) / (lane.latency + 1.0 + nbytes * 1e9 / lane.out)

    def _relaxed(self, chosen: list[_AwayStretch], aim: int) -> list[_AwayStretch]:
        """What leaves later and comes back earlier where the others have made room since, or stays."""
        gaps, found = self._step.gaps, list[_AwayStretch]()
        for away in chosen:
            self._held[away.gone : away.back] += self._nbytes(away)
            first, read = int(gaps.first[away.gap]), int(gaps.read[away.gap])
            over = first + np.flatnonzero(self._held[first:read] > aim)
            if len(over):
                moved = away._replace(gone=int(over[0]), back=int(over[-1]) + 1)
                self._held[moved.gone : moved.back] -= self._nbytes(moved)
                found.append(moved)
        return found

    def _written(self, chosen: list[_AwayStretch]) -> tuple[FlatPage, ...]:
        gaps = self._step.gaps
        ordered = sorted(chosen, key=lambda away: (away.gone, int(gaps.values[away.gap])))
        return tuple(
            flat_page(self._graph, int(gaps.values[one.gap]), one.to, one.gone, one.back, int(gaps.read[one.gap]))
            for one in ordered
        )
