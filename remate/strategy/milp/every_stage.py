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

import numpy as np

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.support.gc_pause import gc_paused

from ..instance import StepInstance
from ..pyomo_api import Model, constraints, pyo
from .formulation import PARTS, linear
from .highs import binaries
from .horizon import horizon
from .solver_model import HIGHS, solver_model
from .stage_rows import StageRows


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
        self.rows = StageRows(self.problem, self.about, self.number, self.maker)
        with gc_paused():
            self.model: Any = self._build()
            self.engine = solver_model(self.model, solver)
        self.runs: list[tuple[int, int]] = list(self.model.run)
        self.holds: list[tuple[int, int]] = list(self.model.hold)
        self.run_columns = self.engine.columns(self.model.run.values())
        self.hold_columns = self.engine.columns(self.model.hold.values())
        self.peak_column = self.engine.columns([self.model.peak])
        self.time_cost = self.engine.cost.copy()

    def _build(self) -> Model:
        about, model = self.about, self._variables()
        run, hold, free, over, level = (
            dict(v.items()) for v in (model.run, model.hold, model.free, model.over, model.level)
        )
        m = _Variables(run, hold, free, over, level, model.peak)
        self.rows.hold_pinned(m)
        uses = {s: self.rows.uses(s) for s in self.maker}
        rows: list[Any] = []
        for t in range(len(about.operations)):
            present = [n for n in range(t + 1) if self.rows.run(m, t, n) is not None]
            for n in present:
                rows += self.rows.needs(m, t, n)
            for s in self.maker:
                if self.maker[s] <= t <= about.until[s]:
                    rows += self.rows.deaths(m, t, s, [k for k in uses[s] if k in present])
            rows += self._memory(m, t, present)
        model.rows = constraints(rows)
        model.time = pyo.Objective(expr=linear([m.peak, *m.run.values()], [0.0, *(self._cost(n) for _, n in m.run)]))
        return model

    def _variables(self) -> Any:
        about, m = self.about, pyo.ConcreteModel()
        m.run = pyo.Var(self.rows.run_keys(), domain=pyo.Binary)
        m.hold = pyo.Var(sorted((t, s) for s in self.maker for t in self.rows.stages(s)), domain=pyo.Binary)
        m.free = pyo.Var(list(self.rows.free_keys()), bounds=(0, 1))
        m.over = pyo.Var(list(self._over_keys()), bounds=(0, 1))
        m.level = pyo.Var([(t, n) for t in range(len(about.last)) for n in range(t + 1)], bounds=(0, None))
        m.peak = pyo.Var(bounds=(0, None))
        return m

    def _over_keys(self) -> Iterator[tuple[int, int, int]]:
        for t in range(len(self.about.operations)):
            for n in range(t + 1):
                if self.rows.may_run(t, n):
                    yield from (
                        (t, s, n) for s in self.problem.may_overwrite[self.about.operations[n]] if s in self.maker
                    )

    def _memory(self, m: _Variables, t: int, present: list[int]) -> Iterator[Any]:
        problem, unit = self.problem, self.unit
        outside = sum(b for b, last in problem.tangents if problem.backward_start <= self.about.operations[t] <= last)
        held = [(m.hold[t, s], problem.size[s] / unit) for s in self.maker if (t, s) in m.hold and problem.size[s]]
        before: Any = sum(size * var for var, size in held) + outside / unit
        for n in range(t + 1):
            i, run = self.about.operations[n], self.rows.run(m, t, n)
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
