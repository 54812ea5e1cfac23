"""Coop: memory has addresses, so evicted storages must be contiguous.

J. Zhang, S. Ma, P. Liu, J. Yuan, "Coop: Memory is not a commodity", NeurIPS 2023, has three ideas.

- Sliding window: if no hole is large enough, evict the contiguous stretch of memory that is long enough and cheapest to
  recompute. Other evictions would only leave holes.
- Cheap tensor partitioning: storages that are cheap to recompute per byte are placed from one end of memory, expensive
  storages from the other. This makes long cheap stretches likely.
- Recomputable in-place: results overwrite arguments that can be recomputed. The linker does this for every schedule.

The cost of a storage is that of DTR, divided by the time since its last use. Holes occupy memory, so the policy evicts
more than a policy that only counts bytes. The simulator judges the result by its live bytes, like any other schedule.
`python -m tools.bench.eviction` judges it with addresses.
"""

from __future__ import annotations

from bisect import insort
from statistics import median
from typing import NamedTuple

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .dtr import Neighbourhood, neighbourhood, score
from .replay import StepReplay, replayed

OUTSIDE = -2  # among storages


class _Block(NamedTuple):
    start: int
    end: int
    storage: int


class Arena:
    """Memory of `budget` bytes. blocks: The allocated blocks, by address."""

    def __init__(self, problem: Problem, around: Neighbourhood, budget: int) -> None:
        self.problem, self.around, self.size = problem, around, budget
        self.blocks: list[_Block] = []
        self.outside = 0  # bytes of tangents, which the step does not compute
        storages = [s for s in problem.storages if problem.size[s]]
        self.middle = median(self._density(s) for s in storages) if storages else 0.0

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Place storages, the largest first; evict a stretch if no hole is large enough."""
        outside = replay.held - sum(block.end - block.start for block in self.blocks if block.storage >= 0)
        if outside != self.outside:
            self.outside = outside
            self.gone(OUTSIDE)
            sizes = {OUTSIDE: outside, **sizes}
        for s, nbytes in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
            if nbytes and not self._place(replay, s, nbytes):
                return False
        return True

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """Return the storages that operation i reads."""
        return replay.problem.reads[i]

    def gone(self, s: int) -> None:
        """Free the block of a storage."""
        self.blocks = [block for block in self.blocks if block.storage != s]

    def _density(self, s: int) -> float:
        return self.problem.time[self.problem.producer[s]] / self.problem.size[s]

    def _place(self, replay: StepReplay, s: int, nbytes: int) -> bool:
        cheap = s in self.around.sources and self._density(s) <= self.middle
        holes = [(start, end) for start, end in self._holes() if end - start >= nbytes]
        if not holes:
            stretch = self._stretch(replay, nbytes)
            if stretch is None:
                return False
            for block in stretch:
                replay.evict(block.storage)
            holes = [(start, end) for start, end in self._holes() if end - start >= nbytes]
        start, end = holes[0] if cheap else holes[-1]
        at = start if cheap else end - nbytes
        insort(self.blocks, _Block(at, at + nbytes, s))
        return True

    def _holes(self) -> list[tuple[int, int]]:
        starts = [0, *(block.end for block in self.blocks)]
        ends = [*(block.start for block in self.blocks), self.size]
        return [(a, b) for a, b in zip(starts, ends, strict=True) if b > a]

    def _stretch(self, replay: StepReplay, nbytes: int) -> list[_Block] | None:
        """Return the cheapest run of evictable blocks that spans at least `nbytes`, or None."""
        blocks = self.blocks
        cost = [score(replay, self.around, b.storage) if self._evictable(replay, b) else None for b in blocks]
        best: tuple[float, int, int] | None = None
        first, total = 0, 0.0
        for last, own in enumerate(cost):
            if own is None:
                first, total = last + 1, 0.0
                continue
            total += own
            while first <= last and self._between(first + 1, last) >= nbytes:
                total -= cost[first] or 0.0
                first += 1
            if self._between(first, last) >= nbytes and (best is None or total < best[0]):
                best = total, first, last
        return None if best is None else blocks[best[1] : best[2] + 1]

    def _between(self, first: int, last: int) -> int:
        """Return the contiguous free bytes after blocks `first` to `last` are evicted."""
        start = self.blocks[first - 1].end if first else 0
        end = self.blocks[last + 1].start if last + 1 < len(self.blocks) else self.size
        return end - start if first <= last else 0

    def _evictable(self, replay: StepReplay, block: _Block) -> bool:
        return block.storage >= 0 and replay.evictable(block.storage)


def coop(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Propose the schedules of replays in an arena.

    Source:
        J. Zhang, S. Ma, P. Liu, J. Yuan, "Coop: Memory is not a commodity", NeurIPS 2023.
    From the paper:
        All three ideas: a sliding window over addresses finds the cheapest contiguous stretch to evict, cheap and
            expensive storages are placed from opposite ends, and results overwrite arguments in place.
    Differences:
        The linker chooses in-place results, for every strategy alike. The policy needs contiguous memory while it
        decides, but the simulator judges the result by live bytes, because all strategies are compared by them. With
        addresses it wins nothing here: a schedule is known in advance, so its storages get addresses from their live
        ranges, and any schedule fits into a block of its live bytes and at most 1% (tools/bench/results/eviction.txt).
        The policy replays a captured step, as `dtr` does.
    """
    around = instance.view(neighbourhood)
    yield from replayed(instance, request, context, lambda budget: Arena(instance.problem, around, budget))


COOP = Strategy(
    "coop",
    "online: evicts the contiguous storages that are cheapest to recompute",
    coop,
    reference="J. Zhang et al., Coop: memory is not a commodity, NeurIPS 2023",
)
