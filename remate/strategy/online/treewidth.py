"""Recursion along a tree decomposition: memory for few operations at a time, whatever the time.

R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. Wang, "Efficient rematerialization for deep networks", NeurIPS 2019. A
graph of treewidth w has a set of at most w + 1 operations whose removal leaves parts of at most half its size
(`separators`). To compute an operation, the paper's recursion first computes those separators around it that it
depends on, from the whole graph inwards and in the graph's order, and holds them; what else it depends on is inside a
part that a separator closes off, and is computed in the same way. So one separator is held for each of log n levels:
O(w log n) values at once, beside the arguments of the operations under way.

What differs: the paper schedules the computation of all operations once; here a training step keeps its order, and each
of its operations is computed so in turn. The paper's schedule takes no budget; here what is computed stays in memory
until the budget needs its place: what is not on the path from the whole to the current part goes first, the deepest
before others. Where a budget is less than the separators take, they are not held but only go last, which takes more
time. Gradients, and what may not run again, stay. The decomposition is the heuristic of least degree.
"""

from __future__ import annotations

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from .replay import StepReplay, replayed
from .separators import Separators


class Path:
    """Memory in which separators on the path to the part at work go last. holds: they do not go at all."""

    def __init__(self, separators: Separators, *, holds: bool = True) -> None:
        self.separators, self.holds = separators, holds

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """What operation i reads; before that, if they are held, separators around it that it depends on, the outermost
        first."""
        problem = replay.problem
        reads = problem.reads[i]
        if not self.holds or all(s in replay.there for s in reads):
            return reads
        part, depth, path = self.separators.part, self.separators.depth, self.separators.path[i]
        around, seen, open_ = list[tuple[int, int, int]](), set[int](reads), list(reads)
        while open_:
            s = open_.pop()
            f = problem.producer[s]
            if part[f] in path:
                around.append((depth[part[f]], f, s))
            if s not in replay.there and f < problem.backward_start:
                open_ += [r for r in problem.reads[f] if r not in seen]
                seen.update(problem.reads[f])
        return tuple(dict.fromkeys([*(s for _, _, s in sorted(around)), *reads]))

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Evict storages, by their parts, until these sizes fit."""
        problem, needed = replay.problem, sum(sizes.values())
        excess = replay.held + needed - replay.budget
        if excess <= 0:
            return True
        producer = next((problem.producer[s] for s in sizes if s >= 0), replay.point)
        path = {part for i in (replay.point, producer) for part in self.separators.path[i]}
        free = [s for s in replay.there if problem.size[s] and replay.may_go(s)]
        for _, s in sorted((self._rank(problem.producer[s], path), s) for s in free):
            if excess <= 0:
                break
            excess -= problem.size[s]
            replay.evict(s)
        return excess <= 0

    def gone(self, s: int) -> None:
        """Bytes are counted by the replay."""

    def _rank(self, i: int, path: set[int]) -> tuple[bool, int]:
        part = self.separators.part[i]
        return part in path, -self.separators.depth[part]


def treewidth(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """The replay by the recursion."""
    separators = instance.view(separators_of)
    yield from replayed(instance, request, context, lambda _: Path(separators), lambda _: Path(separators, holds=False))


def separators_of(instance: StepInstance) -> Separators:
    """The recursion of a step."""
    return Separators(instance.problem)


TREEWIDTH = Strategy(
    "treewidth",
    "recursion along a tree decomposition: small peaks, whatever the time",
    treewidth,
    reference="R. Kumar et al., Efficient rematerialization for deep networks, NeurIPS 2019",
)
