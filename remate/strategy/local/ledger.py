"""A quick account of a schedule for local search: every incarnation of every storage, and the bytes live at each step.

Counts as the simulator does, up to its finest points (copies of buffers, generator states, the order in which views
die), so what local search finds here is always confirmed there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remate_runtime.step import FlatRerun

from ..problem import Problem


class Life:
    """One incarnation of a storage: made at `birth`, read at `reads` (steps), counted up to `death`."""

    __slots__ = ("birth", "death", "reads", "storage")

    def __init__(self, storage: int, birth: int) -> None:
        self.storage, self.birth, self.death = storage, birth, birth
        self.reads: list[int] = []


class Ledger:
    """order: operation at each step. again: index into `reruns` at each step, -1 for a first run. lives: all
    incarnations; by_step[i]: those made at step i; before[n]: the incarnation that storage had before it was made again
    by rerun n, with the new one. live: bytes during each step."""

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
        self.turn = 0
        for i, real in enumerate(problem.real):
            if i == problem.backward_start:
                self.turn = len(self.order)
            for n in at.get(i, ()):
                self.order.append(self.reruns[n].op)
                self.again.append(n)
            if real:
                self.order.append(i)
                self.again.append(-1)
        if problem.backward_start == len(problem.real):
            self.turn = len(self.order)

    def _account(self) -> None:
        problem = self.problem
        current: dict[int, Life] = {}
        self.lives: list[Life] = []
        self.by_step: list[list[Life]] = []
        self.before: dict[int, list[tuple[Life, Life]]] = {}
        for step, i in enumerate(self.order):
            for s in problem.reads[i]:
                current[s].reads.append(step)
            made: list[Life] = []
            for s in problem.writes[i]:
                life = Life(s, step)
                if self.again[step] >= 0:
                    self.before.setdefault(self.again[step], []).append((current[s], life))
                current[s] = life
                made.append(life)
            self.by_step.append(made)
            self.lives.extend(made)
        self._deaths(current)
        change = np.zeros(len(self.order) + 1, dtype=np.int64)
        for life in self.lives:
            change[life.birth] += problem.size[life.storage]
            change[life.death + 1] -= problem.size[life.storage]
        if problem.tangents and self.turn < len(self.order):
            first = {i: step for step, i in enumerate(self.order) if self.again[step] < 0}
            for size, last in problem.tangents:
                change[self.turn] += size
                change[first.get(last, len(self.order) - 1) + 1] -= size
        self.live = np.cumsum(change)[: len(self.order)]
        self.live += np.array([problem.workspace[i] for i in self.order], dtype=np.int64)

    def _deaths(self, final: dict[int, Life]) -> None:
        problem, end = self.problem, len(self.order) - 1
        at_turn: dict[int, Life] = {}
        for life in self.lives:
            if life.birth < self.turn:
                at_turn[life.storage] = life
        dying: dict[tuple[int, int], Life] = {}  # by step and storage
        for life in self.lives:
            s = life.storage
            life.death = life.reads[-1] if life.reads else life.birth
            if (s in problem.returned and at_turn.get(s) is life) or (s in problem.gradients and final[s] is life):
                life.death = end
            elif s in problem.until_turn and at_turn.get(s) is life and life.death < self.turn:
                life.death = self.turn - 1
            elif life.reads:
                dying[life.death, s] = life
        for step, i in enumerate(self.order):
            for s in problem.may_overwrite[i]:
                if (step, s) in dying:  # the output takes its place
                    dying[step, s].death = step - 1
                    break

    @property
    def peak(self) -> int:
        return int(self.live.max(initial=0))

    @property
    def time(self) -> int:
        return sum(self.problem.time[i] for i in self.order)
