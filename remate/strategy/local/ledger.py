"""A fast account of a schedule for local search: live ranges of all storages, and bytes live at each step.

It counts exactly as the simulator does, in whole arrays, because a search counts schedules of thousands of executions
thousands of times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from remate_runtime.flat_step import FlatRecompute

from ..problem import Problem

BACKWARD_START = -1  # as an operation: buffers get their values, outputs go to the caller


class Ledger:
    """The account of one schedule.

    Lives (live ranges of storages) are numbered in the order in which they begin.

    Attributes:
        order: The operation at each step; BACKWARD_START at step `backward_start`, which reads the outputs of the model
            and the new contents of buffers.
        again: By step, index into `recomputes`, or -1 for a first execution.
        live: By step, bytes during it, and during the delivery of gradients after it.
        storage: By life, its storage.
        birth: By life, the step that computes it.
        death: By life, the last step at which it counts.
        held: By life, whether it is held from outside until the end.
        first: By life, the first step that reads it, or -1.
        reads: By life, how many steps read it.
    """

    def __init__(self, problem: Problem, recomputes: Sequence[FlatRecompute]) -> None:
        self.problem, self.recomputes, self.arrays = problem, recomputes, problem.arrays
        self._run()
        self._lives()
        self._readers()
        self._deaths()
        self._bytes()

    def _run(self) -> None:
        arrays, real = self.arrays, self.arrays.real
        again = np.arange(len(self.recomputes))
        before = np.array([r.before for r in self.recomputes], dtype=np.int64)
        place = np.concatenate([3 * real + 2, [3 * self.problem.backward_start], 3 * before + 1])
        order = np.concatenate([real, [BACKWARD_START], np.array([r.op for r in self.recomputes], dtype=np.int64)])
        index = np.concatenate([np.full(len(real) + 1, -1), again])
        at = np.argsort(place, kind="stable")
        self._order, self._again = order[at], index[at]
        self.backward_start = int(np.flatnonzero(self._order == BACKWARD_START)[0])
        self._steps = len(at)
        self._first_runs = self._again < 0
        self._workspace = arrays.workspace[self._order]

    @cached_property
    def order(self) -> list[int]:
        return self._order.tolist()

    @cached_property
    def again(self) -> list[int]:
        return self._again.tolist()

    def _lives(self) -> None:
        self.birth, self.storage = self.arrays.writes.of(self._order)
        self._width = self._steps + 1
        key = self.storage * self._width + self.birth
        self._by_key = np.argsort(key)
        self._keys = key[self._by_key]

    def _latest(self, storage: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the lives that storages have when a step begins, -1 for storages without one."""
        at = np.searchsorted(self._keys, storage * self._width + step) - 1
        life = self._by_key[np.maximum(at, 0)]
        return np.where((at >= 0) & (self.storage[life] == storage), life, -1)

    def _readers(self) -> None:
        step, storage = self.arrays.reads.of(self._order)
        life = self._latest(storage, step)
        if (life < 0).any():
            raise KeyError(int(storage[life < 0][0]))  # read before it is computed
        self.held = np.zeros(len(self.birth), dtype=bool)
        self.held[life[(step == self.backward_start) & self.arrays.returned[storage]]] = True
        self.held[self._latest(self.arrays.gradients, np.full(len(self.arrays.gradients), self._steps))] = True
        by_life = np.argsort(life, kind="stable")
        self._read_steps = step[by_life]
        self.reads = np.bincount(life, minlength=len(self.birth))
        self._read_start = np.concatenate([[0], np.cumsum(self.reads)])
        self.first, self._last = np.full(len(self.birth), -1), self.birth.copy()
        read = self.reads > 0
        self.first[read] = self._read_steps[self._read_start[:-1][read]]
        self._last[read] = self._read_steps[self._read_start[1:][read] - 1]

    def reads_of(self, life: int) -> list[int]:
        """Return the steps that read a life, ascending."""
        return self._read_steps[self._read_start[life] : self._read_start[life + 1]].tolist()

    def _deaths(self) -> None:
        self.death = np.where(self.held, self._steps - 1, self._last)
        step, storage = self.arrays.may_overwrite.of(self._order)
        life = self._latest(storage, step)
        dies = (life >= 0) & (self.reads[life] > 0) & ~self.held[life] & (self.death[life] == step)
        _, first = np.unique(step[dies], return_index=True)
        self._overwritten = life[dies][first]
        self.death[self._overwritten] -= 1  # the output overwrites the first possible argument
        if len(self.arrays.deliveries):
            self._deliveries()

    def _deliveries(self) -> None:
        """Set the death of gradients that are freed at their delivery.

        A delivery follows an operation, or a later recomputation that reads the parameters.
        """
        first = np.full(len(self.problem.real), self._steps - 1)
        first[self._order[self._first_runs & (self._order != BACKWARD_START)]] = np.flatnonzero(
            self._first_runs & (self._order != BACKWARD_START)
        )
        at = first[self.arrays.deliveries]
        step, delivery = self.arrays.delays.of(self._order)
        again = ~self._first_runs[step]
        np.maximum.at(at, delivery[again], step[again])
        self._delivered_at = at
        storage, delivery = self.arrays.delivered
        self.death[self._latest(storage, np.full(len(storage), self._steps))] = at[delivery]

    def _bytes(self) -> None:
        """Sum the bytes. rise: by step, bytes that count from then on; fall: bytes that no longer count."""
        steps, size = self._steps, self.arrays.size[self.storage]
        rise, fall = np.zeros(steps + 1, dtype=np.int64), np.zeros(steps + 1, dtype=np.int64)
        np.add.at(rise, self.birth, size)
        np.add.at(fall, self.death + 1, size)
        for nbytes, last in self.problem.tangents:
            rise[min(self.backward_start + 1, steps)] += (
                nbytes  # the forward/backward boundary itself needs no more than the operation after it
            )
            first = np.flatnonzero(self._first_runs & (self._order == last))
            fall[(int(first[0]) if len(first) else steps - 1) + 1] += nbytes
        self._copies(rise, fall)
        self._states(rise, fall)
        given: dict[int, int] = {}  # copies of gradients by the step before the delivery that makes them
        for delivery, nbytes, stays in self.problem.gradient_copies:
            step = int(self._delivered_at[delivery])
            given[step] = given.get(step, 0) + nbytes
            rise[step + 1] += nbytes * stays
        self.live = np.cumsum(rise - fall)[:steps] + self._workspace
        for step, nbytes in given.items():
            self.live[step] = max(int(self.live[step]), self._after(step, rise, fall, size) + nbytes)

    def _after(self, step: int, rise: np.ndarray, fall: np.ndarray, size: np.ndarray) -> int:
        """Return bytes after a step, while the gradients that are delivered there are still held."""
        stays = self.held.copy()
        stays[self._overwritten] = True  # until the step after the last one at which it counts
        in_memory = int(rise[: step + 1].sum() - fall[: step + 2].sum() + size[stays & (self.death == step)].sum())
        return in_memory + (self.problem.lasting_tangents if step + 1 == self._steps else 0)

    def _copies(self, rise: np.ndarray, fall: np.ndarray) -> None:
        """Count old contents of buffers that the step updates, from the forward/backward boundary to their last
        read."""
        step, buffer = self.arrays.buffers.of(self._order)
        late = step > self.backward_start
        last = np.full(len(self.arrays.copies), -1)
        np.maximum.at(last, buffer[late], step[late])
        read = np.flatnonzero(last >= 0)
        rise[self.backward_start] += self.arrays.copies[read].sum()
        np.add.at(fall, last[read] + 1, self.arrays.copies[read])

    def _states(self, rise: np.ndarray, fall: np.ndarray) -> None:
        """Count states of generators: each from the first run to the last recomputation, and the current state
        during a replay."""
        state = self.arrays.state[self._order]
        recompute = np.flatnonzero((state > 0) & ~self._first_runs)
        rise[recompute] += state[recompute]
        fall[recompute + 1] += state[recompute]
        last = np.full(len(self.arrays.state), -1)
        np.maximum.at(last, self._order[recompute], recompute)
        first = np.flatnonzero(self._first_runs & (last[self._order] >= 0))
        np.add.at(rise, first, state[first])
        np.add.at(fall, last[self._order[first]] + 1, state[first])

    @cached_property
    def _by_storage(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Return keys of lives, ascending, with the storage, birth and death of each."""
        at = self._by_key
        lives = zip(self.storage[at].tolist(), self.birth[at].tolist(), self.death[at].tolist(), strict=True)
        return self._keys.tolist(), list(lives)

    def latest(self, storage: int, step: int) -> tuple[int, int] | None:
        """Return birth and death of the life that a storage has when a step begins, or None."""
        keys, lives = self._by_storage
        at = bisect_left(keys, storage * self._width + step) - 1
        owner, birth, death = lives[at]
        return (birth, death) if at >= 0 and owner == storage else None

    def remade(self) -> list[tuple[int, int, int]]:
        """Return (recomputation, life of a storage before it, life that it begins) of all recomputations, in
        execution order."""
        new = np.flatnonzero(self._again[self.birth] >= 0)
        old = self._latest(self.storage[new], self.birth[new])
        return list(zip(self._again[self.birth[new]].tolist(), old.tolist(), new.tolist(), strict=True))

    @property
    def wanted(self) -> np.ndarray:
        """Return by life whether it is read or held."""
        return (self.reads > 0) | self.held

    def first_need(self) -> np.ndarray:
        """Return by step the first step that reads one of its results, or -1."""
        read = np.flatnonzero(self.first >= 0)
        first = np.full(self._steps, self._steps)
        np.minimum.at(first, self.birth[read], self.first[read])
        return np.where(first < self._steps, first, -1)

    def only_reader(self) -> np.ndarray:
        """Return by step the only step that reads its results.

        It is -1 if there are no readers or several, or if a result is held from outside.
        """
        read = np.flatnonzero(self.reads > 0)
        first, last = np.full(self._steps, self._steps), np.full(self._steps, -1)
        np.minimum.at(first, self.birth[read], self.first[read])
        np.maximum.at(last, self.birth[read], self._last[read])
        last[self.birth[self.held]] = -1
        return np.where(first == last, first, -1)

    @property
    def peak(self) -> int:
        return int(self.live.max(initial=0))

    @property
    def time(self) -> int:
        return int(self.arrays.time[self._order].sum())
