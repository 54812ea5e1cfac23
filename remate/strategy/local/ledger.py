"""A quick account of a schedule for local search: every incarnation of every storage, and the bytes live at each step.

Counts as the simulator does, to the byte, so that what local search finds here is what is found there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remate_runtime.step import FlatRerun

from ..problem import Problem

TURN = -1  # among operations: buffers take their values, the outputs go to the caller


class Life:
    """One incarnation of a storage: made at `birth`, read at `reads` (steps), counted up to `death`. held: somebody
    outside holds it to the end."""

    __slots__ = ("birth", "death", "held", "reads", "storage")

    def __init__(self, storage: int, birth: int) -> None:
        self.storage, self.birth, self.death, self.held = storage, birth, birth, False
        self.reads: list[int] = []


class Ledger:
    """order: operation at each step, TURN at step `turn`, which reads the outputs of the model and the new contents of
    buffers. again: index into `reruns` at each step, -1 for others. lives: all incarnations; by_step[i]: those made at
    step i; before[n]: the incarnation that storage had before it was made again by rerun n, with the new one. live: bytes
    during each step."""

    def __init__(self, problem: Problem, reruns: Sequence[FlatRerun]) -> None:
        self.problem, self.reruns = problem, reruns
        self._run()
        self._account()

    def _run(self) -> None:
        problem = self.problem
        at: dict[int, list[int]] = {}
        for n, rerun in enumerate(self.reruns):
            at.setdefault(rerun.before, []).append(n)
        self.order: list[int] = []
        self.again: list[int] = []
        self.turn = -1
        for i, real in enumerate(problem.real):
            if i == problem.backward_start:
                self._turn()
            for n in at.get(i, ()):
                self.order.append(self.reruns[n].op)
                self.again.append(n)
            if real:
                self.order.append(i)
                self.again.append(-1)
        if self.turn < 0:
            self._turn()

    def _turn(self) -> None:
        self.turn = len(self.order)
        self.order.append(TURN)
        self.again.append(-1)

    def _account(self) -> None:
        problem = self.problem
        current: dict[int, Life] = {}
        self.lives: list[Life] = []
        self.by_step: list[list[Life]] = []
        self.before: dict[int, list[tuple[Life, Life]]] = {}
        for step, i in enumerate(self.order):
            made: list[Life] = []
            for s in problem.reads[i] if i >= 0 else problem.read_at_turn:
                current[s].reads.append(step)
                if i < 0 and s in problem.returned:
                    current[s].held = True
            for s in problem.writes[i] if i >= 0 else ():
                life = Life(s, step)
                if self.again[step] >= 0:
                    self.before.setdefault(self.again[step], []).append((current[s], life))
                current[s] = life
                made.append(life)
            self.by_step.append(made)
            self.lives.extend(made)
        for s in problem.gradients:
            current[s].held = True
        self._deaths()
        self._bytes()

    def _deaths(self) -> None:
        problem, end = self.problem, len(self.order) - 1
        dying: dict[tuple[int, int], Life] = {}  # by step and storage
        for life in self.lives:
            life.death = end if life.held else life.reads[-1] if life.reads else life.birth
            if life.reads and not life.held:
                dying[life.death, life.storage] = life
        for step, i in enumerate(self.order):
            for s in problem.may_overwrite[i] if i >= 0 else ():
                if (step, s) in dying:  # the output takes its place
                    dying[step, s].death = step - 1
                    break

    def _bytes(self) -> None:
        problem, steps = self.problem, len(self.order)
        change = np.zeros(steps + 1, dtype=np.int64)
        for life in self.lives:
            change[life.birth] += problem.size[life.storage]
            change[life.death + 1] -= problem.size[life.storage]
        if problem.tangents:  # the turn itself needs no more than the operation after it, which reads one
            first = {i: step for step, i in enumerate(self.order) if self.again[step] < 0}
            for nbytes, last in problem.tangents:
                change[min(self.turn + 1, steps)] += nbytes
                change[first.get(last, steps - 1) + 1] -= nbytes
        self._copies(change)
        self._states(change)
        self.live = np.cumsum(change)[:steps]
        self.live += np.array([problem.workspace[i] if i >= 0 else 0 for i in self.order], dtype=np.int64)

    def _copies(self, change: np.ndarray) -> None:
        """Old contents of buffers that the step updates, from the turn to their last read."""
        problem, last = self.problem, dict[int, int]()
        if problem.copies:
            for step in range(self.turn + 1, len(self.order)):
                last.update((buffer, step) for buffer in problem.reads_of_buffers[self.order[step]])
        for buffer, step in last.items():
            change[self.turn] += problem.copies[buffer]
            change[step + 1] -= problem.copies[buffer]

    def _states(self, change: np.ndarray) -> None:
        """States of generators: each from the first run to the last rerun, and the present one while it is replayed."""
        problem = self.problem
        if not self.reruns or not any(problem.state):
            return
        random = [step for step, i in enumerate(self.order) if i >= 0 and problem.state[i] and self.again[step] >= 0]
        last = {self.order[step]: step for step in random}
        for step in random:
            change[step] += problem.state[self.order[step]]
            change[step + 1] -= problem.state[self.order[step]]
        for step, i in enumerate(self.order):
            if i in last and self.again[step] < 0:
                change[step] += problem.state[i]
                change[last[i] + 1] -= problem.state[i]

    @property
    def peak(self) -> int:
        return int(self.live.max(initial=0))

    @property
    def time(self) -> int:
        return sum(self.problem.time[i] for i in self.order if i >= 0)
