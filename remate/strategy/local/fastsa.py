"""Simulated annealing over sequences of executions, in any order that the reads allow.

FastSA, a simulated annealing for tensor rematerialization (NeurIPS 2023): an execution moves, is added, or is taken away; what is live is updated over the slots that the
change touches; a sequence is worth its time and what it holds over the budget, which weighs more. Three things
differ: the first half of the changes only reorders, since what an order alone can do costs no time; an array of slots stands in for the segment tree, since what is summed is the excess in all slots and not the
maximum alone; and the order that comes out is improved by ruin and recreate (`recreate`) at the end, which knows in-place
execution.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from remate_runtime.step import FlatRerun

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import Instance
from ..pool import better
from ..problem import Problem
from .polish import polish
from .recreate import improved
from .sequence import GAP, Sequence
from .squeeze import MoveRanking, squeeze

SEED = 20260101
VISITS = 150  # of the effort, for each change that is tried
SMALL = 100  # operations of a step that gets all of them
HOT, COLD = (3.0, 1.0), (0.03, 0.003)  # temperatures, in % of the time of the step: of an order, with reruns
WEIGHT = 10.0  # % of the time of the step that a budget of bytes too much at one operation is worth
NEARBY, NEAR = 0.5, 0.3  # share of the moves that stay near, and share of the sequence that is near
MOVES = 0.7  # share of the changes
ORDERING, STARTS = 0.5, 6  # share of the changes in which nothing runs again, from so many starts
TRIES = 6  # slots that are looked at
PAPER = "FastSA: simulated annealing for tensor rematerialization, NeurIPS 2023"


def fastsa(instance: Instance, request: Request, context: Context) -> Proposals[None]:
    """Anneal, then improve what came out; where that does not fit, make it fit."""
    order, reruns = annealed(instance, request.budget, _changes(instance, request), context.deadline.stopped)
    ordered = instance.ordered(order)
    found = yield Proposal(reruns, order=order)
    best = found if found.peak <= request.budget else None
    for start in ((), reruns) if best is None else ():
        tried = squeeze(ordered.problem, start, request.budget, request.effort, context.deadline, ranking=MoveRanking())
        made = yield Proposal(tried, order=order)
        best = better(best, made) if made.peak <= request.budget else best
    if best is not None:
        best = yield from polish(ordered.problem, best, request.budget, context.deadline, start=best)
        yield from improved(ordered, request, context, best)


def _changes(instance: Instance, request: Request) -> int:
    share = min(1.0, len(instance.graph.operations) / SMALL)
    return int(request.effort.visits / VISITS * share)


def annealed(
    instance: Instance, budget: int, changes: int, stopped: Callable[[], bool]
) -> tuple[tuple[int, ...], tuple[FlatRerun, ...]]:
    """The best sequence that annealing meets."""
    problem, rng = instance.problem, random.Random(SEED)
    each = int(ORDERING * changes / STARTS)
    best: _Annealing | None = None
    for _ in range(STARTS):
        tried = _Annealing(problem, budget, rng, Sequence(problem))
        tried.run(each, stopped, reruns=False)
        best = tried if best is None or tried.best < best.best else best
        if best.best[0] == 0 or stopped():
            return best.result
    assert best is not None
    last = _Annealing(problem, budget, rng, Sequence(problem, best.result[0]))
    last.run(changes - STARTS * each, stopped, reruns=True)
    return min(best, last, key=lambda made: made.best).result


class _Annealing:
    """best: bytes over the budget, summed over slots, and time of the best sequence met; result: that one."""

    def __init__(self, problem: Problem, budget: int, rng: random.Random, sequence: Sequence) -> None:
        self.problem, self.budget, self.rng, self.sequence = problem, budget, rng, sequence
        self.percent = max(1, problem.baseline_time) / 100.0
        self.again = [i for i in sequence.operations if i not in problem.once and sequence.after[i]]
        self.extra: list[int] = []  # operations that execute more than once, one entry for each further execution
        self.best, self.result = (sequence.over(budget), sequence.time), sequence.result()

    def run(self, changes: int, stopped: Callable[[], bool], *, reruns: bool) -> None:
        """Try so many changes, colder and colder."""
        made, rng, (over, time) = self.sequence, self.rng, self.best
        hot, cold = HOT[reruns], COLD[reruns]
        weight = WEIGHT / (max(1, self.budget) * GAP)
        for n in range(changes):
            if self.best == (0, self.problem.baseline_time) or (not n % 1000 and stopped()):
                break
            undo = self._change() if reruns else self._move()
            if undo is None:
                continue
            new_over, new_time = made.over(self.budget), made.time
            worse = (new_time - time) / self.percent + weight * (new_over - over)
            heat = hot * (cold / hot) ** (n / changes)
            if worse > 0 and rng.random() >= math.exp(-worse / heat):
                undo()
                continue
            over, time = new_over, new_time
            if (over, time) < self.best:
                self.best, self.result = (over, time), made.result()

    def _change(self) -> Callable[[], None] | None:
        """Change the sequence by chance; what takes it back, or None where nothing was to be done."""
        kind = self.rng.random()
        if kind < MOVES or not self.again:
            return self._move()
        return self._add() if kind < (1 + MOVES) / 2 else self._take_away()

    def _move(self) -> Callable[[], None] | None:
        made, rng = self.sequence, self.rng
        i = rng.choice(made.operations)
        slots = made.slots[i]
        n = rng.randrange(len(slots))
        old, last = slots[n], len(made.at) - 1
        low = made.earliest(i) if n == 0 else slots[n - 1] + 1
        high = slots[n + 1] - 1 if n + 1 < len(slots) else last
        high = min(high, made.latest(i)) if n == 0 else high
        if rng.random() < NEARBY:
            reach = max(2, int(NEAR * last))
            low, high = max(low, old - reach), min(high, old + reach)
        to = self._empty(low, high)
        if to is None:
            return None
        made.move(i, old, to)
        return lambda: made.move(i, to, old)

    def _add(self) -> Callable[[], None] | None:
        """Execute an operation again a little before something that reads from it."""
        made, rng = self.sequence, self.rng
        i = rng.choice(self.again)
        reader = rng.choice(made.slots[rng.choice(made.listed[i])])
        slot = self._empty(max(made.slots[i][0] + 1, reader - GAP * GAP), reader - 1)
        if slot is None:
            return None
        made.insert(i, slot)
        self.extra.append(i)

        def undo() -> None:
            made.remove(i, slot)
            self.extra.pop()

        return undo

    def _take_away(self) -> Callable[[], None] | None:
        made, rng = self.sequence, self.rng
        if not self.extra:
            return None
        n = rng.randrange(len(self.extra))
        i = self.extra[n]
        slot = made.slots[i][rng.randrange(1, len(made.slots[i]))]
        made.remove(i, slot)
        self.extra[n] = self.extra[-1]
        self.extra.pop()

        def undo() -> None:
            made.insert(i, slot)
            self.extra.append(i)

        return undo

    def _empty(self, low: int, high: int) -> int | None:
        """An empty slot between the two, both included."""
        for _ in range(TRIES):
            if low > high:
                return None
            slot = self.rng.randint(low, high)
            if self.sequence.free(slot):
                return slot
        return None


FASTSA = Strategy(
    "fastsa",
    "simulated annealing over sequences of executions, in any order",
    fastsa,
    reference=PAPER,
    needs=frozenset({"order"}),
    reorders=True,
)
