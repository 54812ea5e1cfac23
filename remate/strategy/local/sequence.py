"""A sequence of executions that changes one execution at a time, with the bytes live at every moment.

Executions are in slots, most of which are empty, so one can move without the others. First executions may have any
order that the reads allow. A storage is live from an execution that computes it to the last execution that reads it
before it is computed again. A change affects only storages that the changed operation writes and reads. The sum of live
bytes over the budget, which annealing minimizes, follows from slices of one array.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from remate_runtime.flat_step import FlatRecompute

from ..problem import Problem

GAP = 3  # slots for each execution


class Sequence:
    """A sequence of executions of a step without a backward of its own.

    Attributes:
        slots: By operation, its slots, ascending.
        at: By slot, its operation, or -1.
        live: Bytes by slot.
        time: ns of all executions.
        before: By operation, operations that it reads from.
        after: By operation, operations that read from it.
        listed: `after` as sorted lists.
    """

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
        self.listed = {i: sorted(readers) for i, readers in self.after.items()}
        self.read = {s: list[int]() for i in self.operations for s in problem.writes[i]}  # slots that read, ascending
        for i in self.operations:
            self._occupy(i, self.slots[i][0])
        self.lives = {s: self._lives(s) for s in self.read}
        for s, lives in self.lives.items():
            self._count(s, lives, 1)

    def free(self, slot: int) -> bool:
        """Return whether a slot is empty."""
        return self.at[slot] < 0

    def earliest(self, i: int) -> int:
        """Return the first slot in which operation i may first execute."""
        if i == self.problem.end:
            return self.slots[i][0]
        return max((self.slots[f][0] for f in self.before[i]), default=0) + 1

    def latest(self, i: int) -> int:
        """Return the last slot in which operation i may first execute."""
        end = len(self.at) if self.problem.end is None else self.slots[self.problem.end][0]
        return min((self.slots[j][0] for j in self.after[i]), default=end) - 1

    def insert(self, i: int, slot: int) -> None:
        """Execute operation i once more, in an empty slot."""
        insort(self.slots[i], slot)
        self._occupy(i, slot)
        self.time += self.problem.time[i]
        self._recount(i)

    def remove(self, i: int, slot: int) -> None:
        """Remove the execution of operation i from a slot."""
        self.slots[i].remove(slot)
        self._vacate(i, slot)
        self.time -= self.problem.time[i]
        self._recount(i)

    def move(self, i: int, slot: int, to: int) -> None:
        """Move an execution of operation i to an empty slot."""
        slots = self.slots[i]
        slots.remove(slot)
        insort(slots, to)
        self._vacate(i, slot)
        self._occupy(i, to)
        self._recount(i)

    def _occupy(self, i: int, slot: int) -> None:
        self.at[slot] = i
        self.live[slot] += self.problem.workspace[i]
        for s in self.problem.reads[i]:
            insort(self.read[s], slot)

    def _vacate(self, i: int, slot: int) -> None:
        self.at[slot] = -1
        self.live[slot] -= self.problem.workspace[i]
        for s in self.problem.reads[i]:
            read = self.read[s]
            del read[bisect_left(read, slot)]

    def _recount(self, i: int) -> None:
        for s in (*self.problem.writes[i], *self.problem.reads[i]):
            old, new = self.lives[s], self._lives(s)
            if new == old:
                continue
            self.lives[s] = new
            if len(old) == len(new) == 1 and old[0][0] == new[0][0]:  # the most frequent case: only its end moves
                (_, end), (_, to), nbytes = old[0], new[0], self.problem.size[s]
                self.live[end + 1 : to + 1] += nbytes
                self.live[to + 1 : end + 1] -= nbytes
                continue
            self._count(s, [life for life in old if life not in new], -1)
            self._count(s, [life for life in new if life not in old], 1)

    def _count(self, s: int, lives: list[tuple[int, int]], sign: int) -> None:
        live, nbytes = self.live, sign * self.problem.size[s]
        for begin, end in lives:
            live[begin : end + 1] += nbytes

    def _lives(self, s: int) -> list[tuple[int, int]]:
        runs, read = self.slots[self.problem.producer[s]], self.read[s]
        last = len(self.at) - 1 if s in self.problem.pinned else max(runs[-1], read[-1] if read else 0)
        if len(runs) == 1:
            return [(runs[0], last)]
        lives: list[tuple[int, int]] = []
        for n in range(len(runs) - 1):
            before = bisect_left(read, runs[n + 1]) - 1
            lives.append((runs[n], max(runs[n], read[before] if before >= 0 else 0)))
        return [*lives, (runs[-1], last)]

    def over(self, budget: int) -> int:
        """Return the bytes over the budget, summed over slots."""
        return int(np.maximum(self.live - budget, 0).sum())

    def result(self) -> tuple[tuple[int, ...], tuple[FlatRecompute, ...]]:
        """Return the order of first executions, and recomputations by positions in it."""
        firsts = sorted(self.operations, key=lambda i: self.slots[i][0])
        position = {i: n for n, i in enumerate(firsts)}
        starts = [self.slots[i][0] for i in firsts]
        recomputes: list[tuple[int, FlatRecompute]] = []
        for i in self.operations:
            for slot in self.slots[i][1:]:
                n = bisect_right(starts, slot)
                if n < len(firsts):  # results after the last first execution are not read
                    recomputes.append((slot, FlatRecompute(position[i], n)))
        return tuple(firsts), tuple(recompute for _, recompute in sorted(recomputes, key=lambda placed: placed[0]))
