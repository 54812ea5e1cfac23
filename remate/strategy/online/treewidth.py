"""Recursion along a tree decomposition: small peaks at any cost of time.

R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. Wang, "Efficient rematerialization for deep networks", NeurIPS 2019. A
graph of treewidth w has a separator of at most w + 1 operations whose removal leaves parts of at most half its size
(`separators`). To compute an operation, the paper's recursion first computes the separators around it that it depends
on, from the whole graph inwards and in the graph's order, and holds them. The other dependences are inside the enclosed
part, and are computed in the same way. The recursion holds one separator for each of log n levels: O(w log n) values at
a time, beside the arguments of the running operations.

This implementation differs in two points. The paper schedules all operations once; here a training step keeps its
order, and the recursion computes each operation in turn. The paper has no budget; here values stay in memory until the
budget needs their space. Values outside the path from the whole step to the current part are evicted first, the deepest
parts before others. If the separators exceed the budget, they are not locked but evicted last, which takes more time.
Gradients, and results of operations that cannot run again, stay. The decomposition is by minimum degree.
"""

from __future__ import annotations

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from .replay import StepReplay, replayed
from .separators import Separators


class Path:
    """Memory that evicts separators on the path to the current part last. holds: It does not evict them at all."""

    def __init__(self, separators: Separators, *, holds: bool = True) -> None:
        self.separators, self.holds = separators, holds

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """Return the storages that operation i reads, after the separators it depends on if those are held.

        The outermost separators come first.
        """
        problem = replay.problem
        reads = problem.reads[i]
        if not self.holds or all(s in replay.resident for s in reads):
            return reads
        part, depth, path = self.separators.part, self.separators.depth, self.separators.path[i]
        around, seen, open_ = list[tuple[int, int, int]](), set[int](reads), list(reads)
        while open_:
            s = open_.pop()
            f = problem.producer[s]
            if part[f] in path:
                around.append((depth[part[f]], f, s))
            if s not in replay.resident and f < problem.backward_start:
                open_ += [r for r in problem.reads[f] if r not in seen]
                seen.update(problem.reads[f])
        return tuple(dict.fromkeys([*(s for _, _, s in sorted(around)), *reads]))

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Evict storages, in the order of their parts, until the sizes fit."""
        problem, needed = replay.problem, sum(sizes.values())
        excess = replay.held + needed - replay.budget
        if excess <= 0:
            return True
        producer = next((problem.producer[s] for s in sizes if s >= 0), replay.point)
        path = {part for i in (replay.point, producer) for part in self.separators.path[i]}
        evictable = [s for s in replay.resident if problem.size[s] and replay.evictable(s)]
        for _, s in sorted((self._rank(problem.producer[s], path), s) for s in evictable):
            if excess <= 0:
                break
            excess -= problem.size[s]
            replay.evict(s)
        return excess <= 0

    def gone(self, s: int) -> None:
        """Do nothing: the replay counts bytes."""

    def _rank(self, i: int, path: set[int]) -> tuple[bool, int]:
        part = self.separators.part[i]
        return part in path, -self.separators.depth[part]


def treewidth(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Propose the schedules of replays by the recursion.

    Source:
        R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. Wang, "Efficient rematerialization for deep networks", NeurIPS
        2019.
    From the paper:
        The recursion over balanced separators of a tree decomposition, with one separator held per level.
    Differences:
        A training step keeps its order, so the recursion computes each operation in turn. Values stay in memory until
        the budget needs their space, because the paper has no budget. The decomposition is by minimum degree, because
        the optimal one is hard to compute.
    """
    separators = instance.view(separators_of)
    yield from replayed(instance, request, context, lambda _: Path(separators), lambda _: Path(separators, holds=False))


def separators_of(instance: StepInstance) -> Separators:
    """Return the separators of a step."""
    return Separators(instance.problem)


TREEWIDTH = Strategy(
    "treewidth",
    "recursion along a tree decomposition: small peaks at any cost of time",
    treewidth,
    reference="R. Kumar et al., Efficient rematerialization for deep networks, NeurIPS 2019",
)
