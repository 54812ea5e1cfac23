"""Dynamic tensor rematerialization: evicts storages that are cheap, large, and unused for long.

M. Kirisame, S. Lyubomirsky, A. Haan, J. Brennan, M. He, J. Roesch, T. Chen, Z. Tatlock, "Dynamic tensor
rematerialization", ICLR 2021. This module has the paper's heuristic h-DTR. It evicts the storage s with the least

    (time of s and of its evicted neighbourhood) / (bytes of s * time since the last use of s)

The evicted neighbourhood consists of the evicted storages that recomputing s needs, and of those that need s, both
transitively. The policy does not see future reads, except that it frees a storage after its last read. Its overhead is
the time of recomputations. `StepReplay` stops if their number indicates thrashing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .replay import StepReplay, replayed


class Neighbourhood:
    """The data dependences between storages that can be recomputed.

    sources: The storages that a storage is computed from. results: The storages that are computed from it.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sources = {s: problem.reads[problem.producer[s]] for s in problem.storages}
        self.results: dict[int, list[int]] = {s: [] for s in problem.storages}
        for s, sources in self.sources.items():
            for source in sources:
                self.results[source].append(s)

    def time(self, s: int, evicted: set[int]) -> int:
        """Return the ns to recompute s and its evicted neighbourhood."""
        time, problem = self.problem.time, self.problem
        operations = {problem.producer[s]}
        for around in (self.sources, self.results):
            operations |= self._reached(s, evicted, around)
        return sum(time[f] for f in operations)

    def _reached(self, s: int, evicted: set[int], around: Mapping[int, Iterable[int]]) -> set[int]:
        seen, operations, wanted = {s}, set[int](), [s]
        while wanted:
            for k in around[wanted.pop()]:
                if k in evicted and k not in seen:
                    seen.add(k)
                    operations.add(self.problem.producer[k])
                    wanted.append(k)
        return operations


def score(replay: StepReplay, around: Neighbourhood, s: int) -> float:
    """Return h-DTR times bytes: ns to recompute s and its evicted neighbourhood per ns since its last use."""
    return (around.time(s, replay.evicted) + 1) / (replay.clock - replay.used[s] + 1)


class Heap:
    """Memory without addresses, which counts bytes. Evicts the storage with the least h-DTR."""

    def __init__(self, around: Neighbourhood) -> None:
        self.around = around

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Evict by h-DTR until the sizes fit."""
        size, needed = replay.problem.size, sum(sizes.values())
        while replay.held + needed > replay.budget:
            evictable = (s for s in replay.resident if size[s] and replay.evictable(s))
            ranked = ((score(replay, self.around, s) / size[s], s) for s in evictable)
            least = min(ranked, default=None)
            if least is None:
                return False
            replay.evict(least[1])
        return True

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """Return the storages that operation i reads."""
        return replay.problem.reads[i]

    def gone(self, s: int) -> None:
        """Do nothing: the replay counts bytes."""


def dtr(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Propose the schedules of replays under h-DTR.

    Source:
        M. Kirisame, S. Lyubomirsky, A. Haan, J. Brennan, M. He, J. Roesch, T. Chen, Z. Tatlock, "Dynamic tensor
        rematerialization", ICLR 2021.
    From the paper:
        The heuristic h-DTR with the exact evicted neighbourhood: time over bytes and staleness.
    Differences:
        The policy replays a captured step instead of intercepting operators, because plans are made before training. So
        its run-time overhead is not part of the time, and storages are freed after their last read. A replay that
        thrashes ends.
    """
    around = instance.view(neighbourhood)
    yield from replayed(instance, request, context, lambda budget: Heap(around))


def neighbourhood(instance: StepInstance) -> Neighbourhood:
    """Return the dependences between the storages of a step."""
    return Neighbourhood(instance.problem)


DTR = Strategy(
    "dtr",
    "online: evicts storages that are cheap to recompute, large, and unused for long",
    dtr,
    reference="M. Kirisame et al., Dynamic tensor rematerialization, ICLR 2021",
)
