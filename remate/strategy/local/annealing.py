"""Simulated annealing over sequences of executions: `fastsa` in any order, and `anneal` in the given order.

A sequence is judged by its time and by its bytes over the budget. The weight of the bytes follows the search: it rises
after every stretch that ends over the budget, and falls after one within it, so that the search goes along the border
between the two (strategic oscillation: F. Glover, Tabu search, part I, ORSA Journal on Computing 1, 1989).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from remate_runtime.flat_step import FlatRecompute

from ..problem import Problem
from .sequence import GAP, Sequence

HOT, COLD = (3.0, 1.0), (0.03, 0.003)  # temperatures, in % of the time of the step: of an order, with recomputation
WEIGHT = 10.0  # first weight, in % of the time of the step, of exceeding the budget by its own size at one operation
STRETCH, FACTOR = 50, 1.06  # changes after which the weight changes, and by how much
NEARBY, NEAR = 0.5, 0.3  # share of the moves that stay near, and share of the sequence that is near
MOVES = 0.7  # share of the changes of an order that may change
ADD, TAKE, SHIFT = 0.4, 0.65, 0.8  # of the changes of recomputations, cumulated: the rest replaces one
AIMED, PEAK, NEXT = 0.7, 0.5, 0.7  # of what is added: over some slot; the fullest slot; before its next reader
TRIES = 8  # slots, or operations, that are looked at
Undo = Callable[[], None]
Result = tuple[
    tuple[int, ...], tuple[FlatRecompute, ...]
]  # order of first executions; recomputations, by positions in it


class Annealing:
    """best: bytes over the budget, summed over slots, and time of the best sequence so far; result: that sequence.
    reorders: first executions move."""

    def __init__(
        self, problem: Problem, budget: int, rng: random.Random, sequence: Sequence, *, reorders: bool
    ) -> None:
        self.problem, self.budget, self.rng, self.sequence, self.reorders = problem, budget, rng, sequence, reorders
        self.percent = max(1, problem.baseline_time) / 100.0
        self.again = [i for i in sequence.operations if i not in problem.once and sequence.after[i]]
        self.extra: list[int] = []  # operations that execute more than once, one entry for each further execution
        self.best, self.result = (sequence.over(budget), sequence.time), sequence.result()

    def run(self, changes: int, stopped: Callable[[], bool], *, recomputes: bool) -> None:
        """Try so many changes, colder and colder. recomputes: operations may run again."""
        sequence, rng, (over, time) = self.sequence, self.rng, self.best
        hot, cold = HOT[recomputes], COLD[recomputes]
        weight = WEIGHT / (max(1, self.budget) * GAP)
        for n in range(changes):
            if self.best == (0, self.problem.baseline_time) or (not n % 1000 and stopped()):
                break
            if recomputes and not n % STRETCH:
                weight *= FACTOR if over else 1 / FACTOR
            undo = self._change() if recomputes else self._move()
            if undo is None:
                continue
            new_over, new_time = sequence.over(self.budget), sequence.time
            worse = (new_time - time) / self.percent + weight * (new_over - over)
            heat = hot * (cold / hot) ** (n / changes)
            if worse > 0 and rng.random() >= math.exp(-worse / heat):
                undo()
                continue
            over, time = new_over, new_time
            if (over, time) < self.best:
                self.best, self.result = (over, time), sequence.result()

    def _change(self) -> Undo | None:
        """Change the sequence by chance; what takes it back, or None where nothing was to be done."""
        if self.reorders and (not self.again or self.rng.random() < MOVES):
            return self._move()
        if not self.again:
            return None
        kind = self.rng.random()
        if kind < ADD or not self.extra:
            return self._add()
        if kind < TAKE:
            return self._take_away()
        return self._shift() if kind < SHIFT else self._replace()

    def _move(self) -> Undo | None:
        """One execution elsewhere, a first one within what reads allow."""
        sequence, rng = self.sequence, self.rng
        i = rng.choice(sequence.operations)
        return self._moved(i, rng.randrange(len(sequence.slots[i])))

    def _shift(self) -> Undo | None:
        """A recomputation elsewhere."""
        i = self.rng.choice(self.extra)
        return self._moved(i, self.rng.randrange(1, len(self.sequence.slots[i])))

    def _moved(self, i: int, n: int) -> Undo | None:
        sequence, slots, last = self.sequence, self.sequence.slots[i], len(self.sequence.at) - 1
        old = slots[n]
        low = sequence.earliest(i) if n == 0 else slots[n - 1] + 1
        high = slots[n + 1] - 1 if n + 1 < len(slots) else last
        high = min(high, sequence.latest(i)) if n == 0 else high
        if self.rng.random() < NEARBY:
            reach = max(2, int(NEAR * last))
            low, high = max(low, old - reach), min(high, old + reach)
        to = self._empty(low, high)
        if to is None:
            return None
        sequence.move(i, old, to)
        return lambda: sequence.move(i, to, old)

    def _add(self) -> Undo | None:
        """Execute an operation again, a little before one of its readers, or so that its result need not be held over a
        certain slot."""
        sequence, rng = self.sequence, self.rng
        if rng.random() < AIMED:
            return self._add_behind(
                int(sequence.live.argmax()) if rng.random() < PEAK else rng.randrange(len(sequence.at))
            )
        i = rng.choice(self.again)
        reader = rng.choice(sequence.slots[rng.choice(sequence.listed[i])])
        return self._inserted(i, max(sequence.slots[i][0] + 1, reader - GAP * GAP), reader - 1)

    def _add_behind(self, full: int) -> Undo | None:
        """Execute again after this slot an operation that ran before it and is read after it."""
        sequence, rng = self.sequence, self.rng
        for _ in range(TRIES):
            i = rng.choice(self.again)
            if sequence.slots[i][0] >= full:
                continue
            later = [slot for j in sequence.listed[i] for slot in sequence.slots[j] if slot > full]
            if later:
                reader = min(later) if rng.random() < NEXT else rng.choice(later)
                near = reader - GAP * GAP if rng.random() < NEARBY else 0
                return self._inserted(i, max(full + 1, near), reader - 1)
        return None

    def _inserted(self, i: int, low: int, high: int) -> Undo | None:
        sequence, slot = self.sequence, self._empty(low, high)
        if slot is None:
            return None
        sequence.insert(i, slot)
        self.extra.append(i)

        def undo() -> None:
            sequence.remove(i, slot)
            self.extra.remove(i)

        return undo

    def _take_away(self) -> Undo | None:
        sequence, rng = self.sequence, self.rng
        i = rng.choice(self.extra)
        slot = sequence.slots[i][rng.randrange(1, len(sequence.slots[i]))]
        sequence.remove(i, slot)
        self.extra.remove(i)

        def undo() -> None:
            sequence.insert(i, slot)
            self.extra.append(i)

        return undo

    def _replace(self) -> Undo | None:
        back = self._take_away()
        away = self._add()
        if away is None or back is None:
            return back

        def undo() -> None:
            away()
            back()

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
