"""Rotor: the optimal persistent schedule of a heterogeneous chain, by dynamic programming.

O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal checkpointing for heterogeneous chains: how to
train deep neural networks with limited memory", Inria RR-9302, 2019 (ACM TOMS 2024), Theorem 1. Let C(s, t, m) be the
least time to run backward of stages t … s from the input of s, with m bytes for everything but that input. Then

    C(s, s, m) = all(s)                                                            if m >= m_all(s, s)
    C(s, t, m) = min of
      all(s) + C(s+1, t, m - saved(s))                                             if m >= m_all(s, t) min over s' of
      sum of again(k), s <= k < s'  + C(s', t, m - carried(s'-1)) + C(s, s'-1, m)   if m >= m_none(s, s', t)

where all(s) runs stage s and saves the values that its backward reads, and again(k) runs stage k for its output only. A
stage may offer several ways to save less and recompute some values inside its backward (X. Zhao et al., "Rockmate",
ICML 2023, section 3.2). Then the first alternative is the least over all of them. Unlike in the papers, bytes beside
the chain (gradients of parameters, values that reach far) are a base that depends on t, and the first run of a stage
costs nothing, because every schedule has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

SLOTS = 1600  # equal parts that memory is divided into
CELLS = 12_000_000  # most cells of the table


class SavingWay(msgspec.Struct, frozen=True):
    """One way to save values in a stage.

    Attributes:
        saved: Bytes, the stage's output included.
        in_forward: Bytes of the peak of the stage's forward alone.
        in_backward: Bytes of the peak of the stage's backward alone.
        extra: ns of recomputations inside backward.
    """

    saved: int
    in_forward: int
    in_backward: int
    extra: int = 0


class ChainStage(msgspec.Struct, frozen=True):
    """A stage of the abstract chain.

    Attributes:
        carried: Bytes of its output.
        in_passing: Bytes of the peak of running it for its output only.
        base: Bytes held beside the chain when its backward begins.
        again: ns of running it for its output only.
        every: ns of running it for its output and for the values that backward reads.
        last: ns of running it for the values that backward reads.
        ways: Ways to save values.
    """

    carried: int
    in_passing: int
    base: int
    again: int
    every: int
    last: int
    ways: tuple[SavingWay, ...]


class StageRun(msgspec.Struct, frozen=True):
    """A run of a stage.

    Attributes:
        kind: "again" runs it for its output only, "all" saves the values that backward reads, "back" runs its backward.
        stage: Number of the stage.
        way: Number of the way to save values.
    """

    kind: str
    stage: int
    way: int = 0


class Table:
    """The values C(s, t, m) for all s, t and m up to `limit` bytes."""

    def __init__(self, chain: Sequence[ChainStage], limit: int) -> None:
        self.chain = list(chain)
        count = len(self.chain)
        self.slots = max(50, min(SLOTS, CELLS // max(1, count * count), max(1, limit)))
        self.unit = max(limit, 1) / self.slots
        self.cost = np.full((count, count, self.slots + 2), np.inf)  # the last column is for negative memory
        self.choice = np.zeros((count, count, self.slots + 1), dtype=np.int16)  # 0: none; s'; -1 - way
        m = np.arange(self.slots + 1)
        self._m = m
        self._after_output = np.stack([self._minus(link.carried) for link in self.chain])
        self._after_way = [[self._minus(way.saved) for way in link.ways] for link in self.chain]
        for length in range(count):
            for s in range(count - length):
                self._fill(s, s + length)

    def smallest(self) -> int | None:
        """Return the least memory in bytes that suffices, up to `limit`."""
        if not self.chain:
            return None
        feasible = np.flatnonzero(np.isfinite(self.cost[0, -1, :-1]))
        return int(feasible[0] * self.unit) + 1 if len(feasible) else None

    def moves(self, memory: float) -> list[StageRun] | None:
        """Return the fastest sequence of stage runs within `memory` bytes, or None."""
        m = min(self.slots, int(memory / self.unit + 1e-9))
        if m < 0 or not self.chain or not np.isfinite(self.cost[0, -1, m]):
            return None
        runs: list[StageRun] = []
        tasks: list[tuple[int, int, int] | StageRun] = [(0, len(self.chain) - 1, m)]
        while tasks:
            task = tasks.pop()
            if isinstance(task, StageRun):
                runs.append(task)
                continue
            s, t, m = task
            pick = int(self.choice[s, t, m])
            if pick < 0:
                way = -1 - pick
                runs.append(StageRun("all", s, way))
                tasks.append(StageRun("back", s, way))
                if t > s:
                    tasks.append((s + 1, t, int(self._after_way[s][way][m])))
            else:
                runs += [StageRun("again", k) for k in range(s, pick)]
                tasks.append((s, pick - 1, m))
                tasks.append((pick, t, int(self._after_output[pick - 1][m])))
        return runs

    def _minus(self, nbytes: int) -> np.ndarray:
        """Return, for all m, the index of m less some bytes."""
        rest = self._m - round(nbytes / self.unit)
        return np.where(rest < 0, self.slots + 1, np.minimum(rest, self.slots))

    def _enough(self, nbytes: int) -> np.ndarray:
        return self._m >= nbytes / self.unit - 1e-9

    def _fill(self, s: int, t: int) -> None:
        link, recompute = self.chain[s], t < len(self.chain) - 1
        base = self.chain[t].base
        cost, choice = self.cost[s, t], self.choice[s, t]
        for n, way in enumerate(link.ways):
            time = way.extra + ((link.every if t > s else link.last) if recompute else 0)
            costs = np.full(self.slots + 1, float(time))
            if t > s:
                costs += self.cost[s + 1, t][self._after_way[s][n]]
            costs[~self._enough(max(base + way.in_forward, way.in_backward))] = np.inf
            self._keep(cost, choice, costs, -1 - n)
        if t == s:
            return
        passing: list[int] = []
        spent: list[int] = []
        held, time, before = 0, 0, 0
        for k in range(s, t):
            stage = self.chain[k]
            held = max(held, before + stage.in_passing)
            before = stage.carried
            time += stage.again if recompute else 0
            passing.append(base + held)
            spent.append(time)
        right = np.take_along_axis(self.cost[s + 1 : t + 1, t], self._after_output[s:t], axis=1)
        costs = right + self.cost[s, s:t, :-1] + np.array(spent, dtype=float)[:, None]
        costs[self._m[None, :] < np.array(passing)[:, None] / self.unit - 1e-9] = np.inf
        best = np.argmin(costs, axis=0)
        self._keep(cost, choice, costs[best, self._m], best + s + 1)

    def _keep(self, cost: np.ndarray, choice: np.ndarray, costs: np.ndarray, pick: int | np.ndarray) -> None:
        less = costs < cost[:-1]
        choice[less] = pick[less] if isinstance(pick, np.ndarray) else pick
        cost[:-1][less] = costs[less]
