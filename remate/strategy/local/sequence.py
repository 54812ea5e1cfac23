"""A sequence of executions that can be changed one execution at a time, with the bytes that are live at every moment.

Executions stand in slots, most of which are empty, so that one can move without the others. First executions may stand in
any order that the reads allow. A storage is live from an execution that makes it to the last one that reads it before it
is made again; a change touches only what the changed operation makes and reads, and the sum of what is live over the
budget, which is what annealing looks at, follows from slices of one array.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from remate_runtime.step import FlatRerun

from ..problem import Problem

GAP = 3  # slots for each execution


class Sequence:
    """slots[i]: where operation i executes, ascending. at: operation by slot, -1 where there is none. live: bytes by slot.
    time: ns of all executions. before[i]: operations that i reads from; after[i], listed[i]: those that read from it. The step has
    no backward of its own, and no views: it is a bare instance."""

    def __init__(self, problem: Problem, order: tuple[int, ...] = ()) -> None:
        self.problem = problem
        self.operations = list(order) or [i for i, real in enumerate(problem.real) if real]
        count = GAP * len(self.operations) + 2
        self.slots = {i: [GAP * n + 1] for n, i in enumerate(self.operations)}
        self.at = np.full(count, -1, dtype=np.int64)
        self.live = np.zeros(count, dtype=np.int64)
        self.time = problem.baseline_time
        self.before: dict[int, set[int]] = {i: {problem.producer[s] for s in problem.reads[i]} for i in self.operations}
        self.after: dict[int, set[int]] = {i: set() for i in self.operations}
        for i, sources in self.before.items():
            for f in sources:
                self.after[f].add(i)
        self.listed = {i: sorted(found) for i, found in self.after.items()}
        self.readers = {s: tuple(problem.readers[s]) for i in self.operations for s in problem.writes[i]}
        self.lives = {s: self._lives(s) for s in self.readers}
        for i in self.operations:
            self.at[self.slots[i][0]] = i
            self.live[self.slots[i][0]] += problem.workspace[i]
        for s in self.lives:
            self._count(s, 1)

    def free(self, slot: int) -> bool:
        """Whether a slot is empty."""
        return self.at[slot] < 0

    def earliest(self, i: int) -> int:
        """The first slot in which operation i may execute."""
        return max((self.slots[f][0] for f in self.before[i]), default=0) + 1

    def latest(self, i: int) -> int:
        """The last slot in which operation i may first execute."""
        return min((self.slots[j][0] for j in self.after[i]), default=len(self.at)) - 1

    def insert(self, i: int, slot: int) -> None:
        """Execute operation i in an empty slot, too."""
        insort(self.slots[i], slot)
        self._place(i, slot, 1)

    def remove(self, i: int, slot: int) -> None:
        """Do not execute operation i in this slot."""
        self.slots[i].remove(slot)
        self._place(i, slot, -1)

    def move(self, i: int, slot: int, to: int) -> None:
        """Execute operation i in another slot, which is empty."""
        slots = self.slots[i]
        slots.remove(slot)
        insort(slots, to)
        self._vacate(i, slot)
        self._occupy(i, to)
        self._recount(i)

    def _place(self, i: int, slot: int, sign: int) -> None:
        if sign > 0:
            self._occupy(i, slot)
        else:
            self._vacate(i, slot)
        self.time += sign * self.problem.time[i]
        self._recount(i)

    def _occupy(self, i: int, slot: int) -> None:
        self.at[slot] = i
        self.live[slot] += self.problem.workspace[i]

    def _vacate(self, i: int, slot: int) -> None:
        self.at[slot] = -1
        self.live[slot] -= self.problem.workspace[i]

    def _recount(self, i: int) -> None:
        for s in (*self.problem.writes[i], *self.problem.reads[i]):
            new = self._lives(s)
            if new != self.lives[s]:
                self._count(s, -1)
                self.lives[s] = new
                self._count(s, 1)

    def _count(self, s: int, sign: int) -> None:
        live, nbytes = self.live, sign * self.problem.size[s]
        for begin, end in self.lives[s]:
            live[begin : end + 1] += nbytes

    def _lives(self, s: int) -> list[tuple[int, int]]:
        made = self.slots[self.problem.producer[s]]
        ends = made.copy()
        for reader in self.readers[s]:
            for slot in self.slots[reader]:
                n = bisect_left(made, slot) - 1
                if n >= 0 and slot > ends[n]:
                    ends[n] = slot
        if s in self.problem.pinned:
            ends[-1] = len(self.at) - 1
        return list(zip(made, ends, strict=True))

    def over(self, budget: int) -> int:
        """Bytes over the budget, summed over slots."""
        return int(np.maximum(self.live - budget, 0).sum())

    def result(self) -> tuple[tuple[int, ...], tuple[FlatRerun, ...]]:
        """The order of first executions, and reruns by positions in it."""
        firsts = sorted(self.operations, key=lambda i: self.slots[i][0])
        position = {i: n for n, i in enumerate(firsts)}
        starts = [self.slots[i][0] for i in firsts]
        reruns: list[tuple[int, FlatRerun]] = []
        for i in self.operations:
            for slot in self.slots[i][1:]:
                n = bisect_right(starts, slot)
                if n < len(firsts):  # behind the last first execution nothing reads it
                    reruns.append((slot, FlatRerun(position[i], n)))
        return tuple(firsts), tuple(rerun for _, rerun in sorted(reruns, key=lambda made: made[0]))
