"""Dynamic tensor rematerialization: what is cheap, large, and long unused goes first.

M. Kirisame, S. Lyubomirsky, A. Haan, J. Brennan, M. He, J. Roesch, T. Chen, Z. Tatlock, "Dynamic tensor
rematerialization", ICLR 2021: the heuristic h-DTR. A storage s is evicted in the order of

        (time of s and of its evicted neighbourhood) / (bytes of s * time since its last read or run)

    where the evicted neighbourhood are the evicted storages that s would need to be computed again, or that would need
    s, and so on. The policy knows nothing of the future but that a storage is not read any more. Overhead is the time
    of recomputations; `StepReplay` stops when their number means thrashing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .replay import StepReplay, replayed


class Neighbourhood:
    """Which storages a storage is computed from, and which from it, among those that may run again."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.made_from = {s: problem.reads[problem.producer[s]] for s in problem.storages}
        self.makes: dict[int, list[int]] = {s: [] for s in problem.storages}
        for s, sources in self.made_from.items():
            for source in sources:
                self.makes[source].append(s)

    def time(self, s: int, evicted: set[int]) -> int:
        """ns to run what makes s, and all that is evicted around it."""
        time, problem = self.problem.time, self.problem
        operations = {problem.producer[s]}
        for around in (self.made_from, self.makes):
            operations |= self._reached(s, evicted, around)
        return sum(time[f] for f in operations)

    def _reached(self, s: int, evicted: set[int], around: dict) -> set[int]:
        seen, operations, wanted = {s}, set[int](), [s]
        while wanted:
            following: Iterable[int] = around[wanted.pop()]
            for k in following:
                if k in evicted and k not in seen:
                    seen.add(k)
                    operations.add(self.problem.producer[k])
                    wanted.append(k)
        return operations


def score(replay: StepReplay, around: Neighbourhood, s: int) -> float:
    """h-DTR without the bytes: ns to make s and its neighbourhood again, for each ns that it has not been used."""
    return (around.time(s, replay.evicted) + 1) / (replay.clock - replay.used[s] + 1)


class Heap:
    """Memory without addresses: a number of bytes. rank: the storage of least rank is evicted first."""

    def __init__(self, around: Neighbourhood) -> None:
        self.around = around

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Evict by h-DTR until these fit."""
        size, needed = replay.problem.size, sum(sizes.values())
        while replay.held + needed > replay.budget:
            free = (s for s in replay.there if size[s] and replay.may_go(s))
            ranked = ((score(replay, self.around, s) / size[s], s) for s in free)
            least = min(ranked, default=None)
            if least is None:
                return False
            replay.evict(least[1])
        return True

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """What operation i reads."""
        return replay.problem.reads[i]

    def gone(self, s: int) -> None:
        """Bytes are counted by the replay."""


def dtr(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """The replay under h-DTR."""
    around = instance.view(neighbourhood)
    yield from replayed(instance, request, context, lambda budget: Heap(around))


def neighbourhood(instance: StepInstance) -> Neighbourhood:
    """The neighbourhoods of a step."""
    return Neighbourhood(instance.problem)


DTR = Strategy(
    "dtr",
    "online: what is cheap to make again, large and long unused goes first",
    dtr,
    reference="M. Kirisame et al., Dynamic tensor rematerialization, ICLR 2021",
)
