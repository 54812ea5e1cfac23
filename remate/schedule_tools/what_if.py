"""Tries other recomputations for the same step with the linker and the simulator, within an allowance of work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from remate_runtime.flat_step import FlatPage, FlatRecompute, expand
from remate_runtime.format import Schedule
from remate_runtime.link import Linked, link, simulate

from .analysis import Analysis
from .steps import ordered, useful

ALLOWANCE = 40_000  # executions simulated: a few tenths of a second


class TrialResult(msgspec.Struct, frozen=True):
    """Cost of a trial: bytes, ns, number of remaining recomputations, and bytes summed over the steps."""

    peak: int
    time: int
    recomputes: int
    area: int


class Trials:
    """Runs trials. Each one costs its executions; when the allowance is used up, `cost` returns None."""

    def __init__(self, opened: Analysis, allowance: int = ALLOWANCE) -> None:
        self.opened, self.left = opened, allowance

    def cost(self, recomputes: Iterable[FlatRecompute]) -> TrialResult | None:
        """Cost of the step with these recomputations. Recomputations with unused results are dropped."""
        if self.left <= 0:
            return None
        chosen = ordered(list(recomputes))
        linked = self._link(chosen)
        needed = useful(linked)
        if not all(needed):
            chosen = [recompute for recompute, keep in zip(chosen, needed, strict=True) if keep]
            linked = self._link(chosen)
        timeline = simulate(linked)
        return TrialResult(timeline.peak, timeline.time, len(chosen), sum(timeline.during))

    def keeping(self, operations: Collection[int]) -> TrialResult | None:
        """Without the recomputations of these operations."""
        return self.cost(recompute for recompute in self.opened.expanded.recomputes if recompute.op not in operations)

    def recomputing(self, more: Iterable[FlatRecompute]) -> TrialResult | None:
        """With further recomputations. At the same point they come before the existing ones, in their order."""
        return self.cost([*more, *self.opened.expanded.recomputes])

    def of_schedule(self, schedule: Schedule) -> TrialResult | None:
        """Cost of another schedule of the same step, unchanged."""
        if self.left <= 0:
            return None
        expanded = expand(schedule)
        self.left -= len(expanded.graph.operations) + len(expanded.recomputes)
        timeline = simulate(link(expanded.graph, expanded.recomputes, expanded.pages))
        return TrialResult(timeline.peak, timeline.time, len(expanded.recomputes), sum(timeline.during))

    def without_pages(self, values: Collection[int], recomputes: Sequence[FlatRecompute] = ()) -> TrialResult | None:
        """With these values kept instead of paged, and optionally with these additional recomputations."""
        if self.left <= 0:
            return None
        expanded = self.opened.expanded
        pages = [page for page in expanded.pages if page.value not in values]
        again = sorted([*recomputes, *expanded.recomputes], key=lambda recompute: recompute.before)
        timeline = simulate(self._link(again, pages))
        return TrialResult(timeline.peak, timeline.time, len(again), sum(timeline.during))

    def paging(self, page: FlatPage) -> TrialResult | None:
        """With one more page."""
        if self.left <= 0:
            return None
        expanded = self.opened.expanded
        timeline = simulate(self._link(list(expanded.recomputes), (*expanded.pages, page)))
        return TrialResult(timeline.peak, timeline.time, len(expanded.recomputes), sum(timeline.during))

    def _link(self, recomputes: list[FlatRecompute], pages: Sequence[FlatPage] | None = None) -> Linked:
        """pages: by default those of the schedule."""
        self.left -= len(self.opened.graph.operations) + len(recomputes)
        return link(self.opened.graph, recomputes, self.opened.expanded.pages if pages is None else pages)
