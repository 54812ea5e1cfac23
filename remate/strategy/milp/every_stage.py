"""Checkmate's model: a stage for every operation, in which any earlier operation may run again once.

P. Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization", MLSys 2020. Operation t
first runs at the end of stage t (the frontier advances by one operation a stage). Before that, operations run again in
step order.

    run[t, i]     operation i runs again in stage t < its last possible need
    hold[t, s]    storage s is resident when stage t begins
    free[t, s, k] the latest live range of s ends at operation k of stage t, which reads or writes it

    minimise  sum of time[i] * run[t, i]
    need      run[t, k] <= run[t, p(s)] + hold[t, s]               for every s that k reads; first runs have run = 1
    chain     hold[t + 1, s] <= hold[t, s] + run[t, p(s)]
    memory    bytes resident at every operation of every stage <= budget: counted from operation to
              operation: plus results, less freed storages

Checkmate defines `free` by big-M rows. These rows are as tight as possible without more variables: free <= run of k;
free + hold[t + 1, s] <= 1; free + run of any later reader <= 1; sum over k of free + hold[t + 1, s] <= run[t, p(s)] +
hold[t, s] (a storage in memory is freed once); and run[t, p(s)] + hold[t, s] <= 1 (a run replaces the earlier result,
which can as well be freed before). Storages and runs that no operation can need any more have no variable. The paper
lacks three things: several outputs of an operation, workspace, and outputs that take the bytes of an input freed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyomo.environ as pyo

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.support.gc_pause import gc_paused

from ..instance import StepInstance
from .formulation import PARTS, linear
from .highs import binaries
from .solver_model import HIGHS, solver_model


class Horizon(msgspec.Struct, frozen=True):
    """The last uses of operations and storages. Executed operations are numbered in step order.

    Attributes:
        operations: Indices of the operations in the graph.
        last: By operation, the last stage that may need its results.
        until: By storage, the last stage that may need it.
        again: By operation, whether it may run again.
        pinned: By storage, the stage from whose beginning it must be held.
    """

    operations: tuple[int, ...]
    last: tuple[int, ...]
    until: dict[int, int]
    again: tuple[bool, ...]
    pinned: dict[int, int]

    @property
    def variables(self) -> int:
        """Return about how many variables the model has."""
        return sum(3 * (last - i) for i, last in enumerate(self.last) if last > i)


def horizon(instance: StepInstance) -> Horizon:
    """Return the last possible uses of each operation and storage."""
    problem = instance.problem
    operations = tuple(i for i, real in enumerate(problem.real) if real)
    number = {i: n for n, i in enumerate(operations)}
    again = tuple(i < problem.backward_start and i not in problem.once for i in operations)
    backward_start = next((n for n, i in enumerate(operations) if i >= problem.backward_start), len(operations))
    end, until, pinned = len(operations), dict[int, int](), dict[int, int]()
    last = list(range(end))
    for s in problem.pinned:
        pinned[s] = backward_start if s in problem.returned and problem.producer[s] < problem.backward_start else end
    pinned |= {s: number.get(problem.held_until(s), end) for s in problem.delivery}
    for s in problem.until_backward_start - problem.pinned:
        pinned[s] = backward_start
    for n in range(end - 1, -1, -1):
        for s in problem.writes[operations[n]]:
            readers = [number[i] for i in problem.readers[s]]
            wanted = [last[k] if again[k] else k for k in readers]
            held = end if s in problem.pinned and s not in problem.delivery else pinned.get(s, n)
            until[s] = max([n, *wanted, held])
            last[n] = max(last[n], until[s])
    return Horizon(operations, tuple(last), until, again, pinned)


class _Variables(NamedTuple):
    """Variables of the model by their keys. Keys without a variable are absent."""

    run: dict[tuple[int, int], Any]
    hold: dict[tuple[int, int], Any]
    free: dict[tuple[int, int, int], Any]
    over: dict[tuple[int, int, int], Any]
    level: dict[tuple[int, int], Any]
    peak: Any


class EveryStage:
    """The model, solved for many budgets.

    Memory is counted in thousandths of the baseline's peak, time in % of the baseline's time.

    Args:
        instance: The step.
        solver: Name of the solver of integer programs.
    """

    def __init__(self, instance: StepInstance, solver: str = HIGHS) -> None:
        self.problem, self.about = instance.problem, instance.view(horizon)
        self.number = {i: n for n, i in enumerate(self.about.operations)}
        self.unit = max(instance.baseline.peak, 1) / PARTS
        self.percent = max(self.problem.baseline_time, 1) / 100.0
        self.maker = {s: n for n, i in enumerate(self.about.operations) for s in self.problem.writes[i]}
        with gc_paused():
            self.model: Any = self._build()
            self.engine = solver_model(self.model, solver)
        self.runs = list(self.model.run)
        self.holds = list(self.model.hold)
        self.run_columns = self.engine.columns(self.model.run.values())
        self.hold_columns = self.engine.columns(self.model.hold.values())
        self.peak_column = self.engine.columns([self.model.peak])
        self.time_cost = self.engine.cost.copy()

    def _stages(self, s: int) -> range:
        """Return the stages at whose beginning storage s may be resident."""
        return range(self.maker[s] + 1, min(self.about.until[s], len(self.about.operations)) + 1)

    def _build(self) -> pyo.ConcreteModel:
        about, model = self.about, self._variables()
        run, hold, free, over, level = (
            dict(v.items()) for v in (model.run, model.hold, model.free, model.over, model.level)
        )
        m = _Variables(run, hold, free, over, level, model.peak)
        self._alive(m)
        uses = {s: self._uses(s) for s in self.maker}
        rows: list[Any] = []
        for t in range(len(about.operations)):
            present = [n for n in range(t + 1) if self._run(m, t, n) is not None]
            for n in present:
                rows += self._needs(m, t, n)
            for s in self.maker:
                if self.maker[s] <= t <= about.until[s]:
                    rows += self._deaths(m, t, s, [k for k in uses[s] if k in present])
            rows += self._memory(m, t, present)
        model.rows = pyo.Constraint(range(len(rows)), rule=lambda m, at: rows[at])
        model.time = pyo.Objective(expr=linear([m.peak, *m.run.values()], [0.0, *(self._cost(n) for _, n in m.run)]))
        return model

    def _variables(self) -> Any:
        about, m = self.about, pyo.ConcreteModel()
        runs = [
            (t, n)
            for n, last in enumerate(about.last)
            if about.again[n]
            for t in range(n + 1, min(last, len(about.last) - 1) + 1)
        ]
        m.run = pyo.Var(sorted(runs), domain=pyo.Binary)
        m.hold = pyo.Var(sorted((t, s) for s in self.maker for t in self._stages(s)), domain=pyo.Binary)
        m.free = pyo.Var(list(self._free_keys()), bounds=(0, 1))
        m.over = pyo.Var(list(self._over_keys()), bounds=(0, 1))
        m.level = pyo.Var([(t, n) for t in range(len(about.last)) for n in range(t + 1)], bounds=(0, None))
        m.peak = pyo.Var(bounds=(0, None))
        return m

    def _alive(self, m: _Variables) -> None:
        """Hold pinned storages from their stage on."""
        for s, first in self.about.pinned.items():
            last = self.about.until[s] if s in self.problem.pinned else first
            for t in range(max(first, self.maker[s] + 1), last + 1):
                if (t, s) in m.hold:
                    m.hold[t, s].setlb(1)

    def _uses(self, s: int) -> list[int]:
        return sorted({self.maker[s], *(self.number[i] for i in self.problem.readers[s])})

    def _may_run(self, t: int, n: int) -> bool:
        return t == n or (self.about.again[n] and n < t <= self.about.last[n])

    def _free_keys(self) -> Iterator[tuple[int, int, int]]:
        for s, maker in self.maker.items():
            uses = self._uses(s)
            for t in range(maker, min(self.about.until[s], len(self.about.operations) - 1) + 1):
                yield from ((t, s, k) for k in uses if k <= t and self._may_run(t, k))

    def _over_keys(self) -> Iterator[tuple[int, int, int]]:
        for t in range(len(self.about.operations)):
            for n in range(t + 1):
                if self._may_run(t, n):
                    yield from (
                        (t, s, n) for s in self.problem.may_overwrite[self.about.operations[n]] if s in self.maker
                    )

    def _run(self, m: _Variables, t: int, n: int) -> Any:
        """Return whether operation n runs in stage t: 1, a variable, or None for never."""
        return 1 if t == n else m.run.get((t, n))

    def _available(self, m: _Variables, t: int, s: int) -> list[Any]:
        """Return terms that make storage s available in stage t, after its producer's turn."""
        run = self._run(m, t, self.maker[s])
        return [term for term in (run, m.hold.get((t, s))) if term is not None]

    def _needs(self, m: _Variables, t: int, n: int) -> Iterator[Any]:
        for s in self.problem.reads[self.about.operations[n]]:
            yield sum(self._available(m, t, s)) >= self._run(m, t, n)

    def _deaths(self, m: _Variables, t: int, s: int, uses: list[int]) -> Iterator[Any]:
        available = self._available(m, t, s)
        later = m.hold.get((t + 1, s), 0)
        if not isinstance(later, int) and self.maker[s] != t:
            yield later <= sum(available)
        if len(available) == 2:
            yield sum(available) <= 1
        frees = [m.free[t, s, k] for k in uses]
        if not frees:
            return
        yield sum(frees) + later <= sum(available)
        for at, k in enumerate(uses):
            run = self._run(m, t, k)
            if not isinstance(run, int):
                yield frees[at] <= run
            for after in uses[at + 1 :]:
                yield frees[at] + self._run(m, t, after) <= 1

    def _memory(self, m: _Variables, t: int, present: list[int]) -> Iterator[Any]:
        problem, unit = self.problem, self.unit
        outside = sum(b for b, last in problem.tangents if problem.backward_start <= self.about.operations[t] <= last)
        held = [(m.hold[t, s], problem.size[s] / unit) for s in self.maker if (t, s) in m.hold and problem.size[s]]
        before: Any = sum(size * var for var, size in held) + outside / unit
        for n in range(t + 1):
            i, run = self.about.operations[n], self._run(m, t, n)
            if n not in present:
                continue
            written = sum(problem.size[s] for s in problem.writes[i]) / unit
            yield m.level[t, n] == before + written * run
            taken = [m.over[t, s, n] for s in problem.may_overwrite[i] if (t, s, n) in m.over]
            for s, over in zip((s for s in problem.may_overwrite[i] if s in self.maker), taken, strict=True):
                yield over <= m.free.get((t, s, n), 0)
            if len(taken) > 1:
                yield sum(taken) <= 1
            saved = written * sum(taken) if taken else 0
            yield m.level[t, n] + problem.workspace[i] / unit * run - saved <= m.peak
            ends = [(s, m.free[t, s, n]) for s in {*problem.reads[i], *problem.writes[i]} if (t, s, n) in m.free]
            before = m.level[t, n] - sum(problem.size[s] / unit * free for s, free in ends)

    def _cost(self, n: int) -> float:
        return self.problem.time[self.about.operations[n]] / self.percent

    def limit(self, budget: float) -> None:
        """Limit the peak to a budget in bytes."""
        self.engine.set_bounds(self.peak_column, np.array([0.0]), np.array([budget / self.unit]))

    def recomputes(self, x: np.ndarray) -> tuple[FlatRecompute, ...]:
        """Return the runs of an integral solution."""
        chosen = binaries(x, self.run_columns)
        operations = self.about.operations
        runs = [(t, n) for (t, n), taken in zip(self.runs, chosen, strict=True) if taken]
        return tuple(FlatRecompute(operations[n], operations[t]) for t, n in sorted(runs))

    def held(self, x: np.ndarray) -> dict[tuple[int, int], float]:
        """Return, by stage and storage, the share of it that is resident when the stage begins."""
        return {key: float(x[c]) if c >= 0 else 0.0 for key, c in zip(self.holds, self.hold_columns, strict=True)}
