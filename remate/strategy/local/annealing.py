"""Simulated annealing over sequences of executions: `fastsa` in any order, and `anneal` in the given order.

A sequence is judged by its time and by its bytes over the budget. The weight of the bytes adapts: it rises after every
stretch of changes that ends over the budget, and falls after one within it, so the search moves along the border
between the two (strategic oscillation: F. Glover, Tabu search, part I, ORSA Journal on Computing 1, 1989).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from remate_runtime.flat_step import FlatRecompute

from ..deadline import Deadline
from ..problem import Problem
from .sequence import GAP, Sequence

HOT, COLD = (3.0, 1.0), (0.03, 0.003)  # temperatures in % of the step's time: for orders, for recomputations
WEIGHT = 10.0  # initial cost, in % of the step's time, of exceeding the budget by its own size at one operation
STRETCH, FACTOR = 50, 1.06  # changes between updates of the weight, and the factor of an update
NEARBY, NEAR = 0.5, 0.3  # share of the moves that stay near, and share of the sequence that counts as near
MOVES = 0.7  # share of the changes that move an execution, if the order may change
ADD, TAKE, SHIFT = 0.4, 0.65, 0.8  # cumulated shares of changes of recomputations; the rest replaces one
# Shares of added recomputations: that free memory at some slot; of these, at the fullest slot; before the next reader.
AIMED, PEAK, NEXT = 0.7, 0.5, 0.7
VISITS = 150  # work of a change
CHECK = 1000  # changes between checks of the deadline
TRIES = 8  # random slots or operations that are tried
Undo = Callable[[], None]
# Order of first executions, and recomputations by positions in it.
Result = tuple[tuple[int, ...], tuple[FlatRecompute, ...]]


class Annealing:
    """One run of annealing.

    Attributes:
        best: Bytes over the budget, summed over slots, and time of the best sequence so far.
        result: The best sequence.
        reorders: Whether first executions may move.
    """

    def __init__(
        self, problem: Problem, budget: int, rng: random.Random, sequence: Sequence, *, reorders: bool
    ) -> None:
        self.problem, self.budget, self.rng, self.sequence, self.reorders = problem, budget, rng, sequence, reorders
        self.percent = max(1, problem.baseline_time) / 100.0
        self.again = [i for i in sequence.operations if i not in problem.once and sequence.after[i]]
        self.extra: list[int] = []  # operations that execute more than once, one entry for each further execution
        self.best, self.result = (sequence.over(budget), sequence.time), sequence.result()

    def run(self, changes: int, deadline: Deadline, *, recomputes: bool) -> None:
        """Try a number of changes while the temperature falls. recomputes: whether operations may run again."""
        sequence, rng, (over, time) = self.sequence, self.rng, self.best
        hot, cold = HOT[recomputes], COLD[recomputes]
        weight = WEIGHT / (max(1, self.budget) * GAP)
        for n in range(changes):
            if not n % CHECK:
                if n and deadline.stopped():
                    break
                deadline.spend(VISITS * min(CHECK, changes - n))
            if self.best == (0, self.problem.baseline_time):
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
        """Change the sequence at random. Returns a function that undoes the change, or None if nothing changed."""
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
        """Move one execution; a first one within the limits of its reads."""
        sequence, rng = self.sequence, self.rng
        i = rng.choice(sequence.operations)
        return self._moved(i, rng.randrange(len(sequence.slots[i])))

    def _shift(self) -> Undo | None:
        """Move a recomputation."""
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
        """Execute an operation again: shortly before one of its readers, or so that its result need not be held over
        some slot."""
        sequence, rng = self.sequence, self.rng
        if rng.random() < AIMED:
            return self._add_after(
                int(sequence.live.argmax()) if rng.random() < PEAK else rng.randrange(len(sequence.at))
            )
        i = rng.choice(self.again)
        reader = rng.choice(sequence.slots[rng.choice(sequence.listed[i])])
        return self._inserted(i, max(sequence.slots[i][0] + 1, reader - GAP * GAP), reader - 1)

    def _add_after(self, full: int) -> Undo | None:
        """Execute an operation that ran before a full slot and is read after it again, after that slot."""
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
        """Return an empty slot from `low` to `high`, or None."""
        for _ in range(TRIES):
            if low > high:
                return None
            slot = self.rng.randint(low, high)
            if self.sequence.free(slot):
                return slot
        return None
