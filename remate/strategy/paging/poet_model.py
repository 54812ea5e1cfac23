"""POET's integer program: in each stage, what runs again, what is in memory, what is in storage, and what is copied.

S. Patil, P. Jain, P. Dutta, I. Stoica, J. Gonzalez, "POET: Training neural networks on tiny devices with integrated
rematerialization and paging", ICML 2022. As in Checkmate, operation t first runs at the end of stage t. The variables
of the paper are:

    run[t, i]   R: operation i runs again in stage t
    hold[t, s]  S_RAM: storage s is in memory when stage t begins
    back[t, s]  M_in: storage s is paged in during stage t, and is in memory when stage t + 1 begins
    out[s]      M_out: storage s is paged out in the stage after its first run, and stays in storage (S_SD)

    minimise  energy, or time
    need      run[t, k] <= run[t, p(s)] + hold[t, s]                  for each s that k reads; first runs have run = 1
    chain     hold[t + 1, s] <= hold[t, s] + run[t, p(s)] + back[t, s]
    storage   back[t, s] <= out[s], out[s] <= hold[p(s) + 1, s]
    memory    bytes in memory at each operation of each stage <= budget
    limit     time, or energy <= limit

The paper has M_out and S_SD for each stage. Its storage has no limit and its copies out cost the same at any time, so a
copy out in the first possible stage is never worse. Frees are those of `every_stage`, which are tighter than the rows
of the paper. Three terms are not in the paper: workspace, a limit of the storage, and `wait`, a lower bound of the time
that the step waits for copies back. The paper assumes that all copies are hidden.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatRecompute, held_outside, stays
from remate_runtime.support.gc_pause import gc_paused

from ...profile.power import Storage
from ..deadline import Deadline
from ..instance import StepInstance
from ..milp.formulation import PARTS, linear
from ..milp.highs import HighsModel, Result, SolveOptions, binaries
from ..milp.horizon import horizon
from ..milp.stage_rows import StageRows
from ..pyomo_api import Model, constraints, pyo


class StorageStretch(NamedTuple):
    """A time in storage. storage: Its number. gone: First operation without it in memory. back: Operation before which
    it returns."""

    storage: int
    gone: int
    back: int


class PoetModel:
    """The program of a step, for many budgets.

    Memory is in thousandths of the baseline's peak. Time and energy are in percent of the baseline's.

    Args:
        instance: The step.
        storage: Times of copies.
        watts: Power of a copy, as a multiple of the power of arithmetic.
        limit: Most bytes in storage.
        waits: Whether time includes waits for copies.
    """

    def __init__(self, instance: StepInstance, storage: Storage, watts: float, limit: int, waits: bool) -> None:
        self.problem, self.about = instance.problem, instance.view(horizon)
        self._watts, self._limit, self._waits = watts, limit, waits
        self._copies = storage
        self._number = {i: n for n, i in enumerate(self.about.operations)}
        self._unit = max(instance.baseline.peak, 1) / PARTS
        self._percent = max(self.problem.baseline_time, 1) / 100.0
        self._maker = {s: n for n, i in enumerate(self.about.operations) for s in self.problem.writes[i]}
        outside = held_outside(instance.graph)
        self._pages = {
            s
            for s in self._maker
            if self.problem.size[s]
            and self.problem.producer[s] < self.problem.backward_start
            and not stays(instance.graph, s, outside)
        }
        self._rows = StageRows(self.problem, self.about, self._number, self._maker)
        with gc_paused():
            self._model: Any = self._build()
            self.engine = HighsModel(self._model)
        self._peak = self.engine.columns([self._model.peak])

    def solve(
        self, deadline: Deadline, budget: float, objective: str, most: float | None, options: SolveOptions
    ) -> Result:
        """Solve for a budget.

        Args:
            deadline: When to stop.
            budget: Most bytes in memory.
            objective: "energy" or "time".
            most: Limit of the other figure, in percent of the baseline's beyond it. None: no limit.
            options: Those of the solver.
        """
        engine, m = self.engine, self._model
        engine.set_bounds(self._peak, np.array([0.0]), np.array([budget / self._unit]))
        limited, goal = (m.time, m.energy) if objective == "energy" else (m.energy, m.time)
        columns = engine.columns([m.time, m.energy])
        engine.set_bounds(columns, np.zeros(2), np.full(2, np.inf))
        if most is not None:
            engine.set_bounds(engine.columns([limited]), np.zeros(1), np.array([max(0.0, most)]))
        cost = np.zeros(len(engine.cost))
        cost[engine.columns([goal])] = 1.0
        cost[engine.columns([limited])] = 1e-6  # of equal solutions, the better one in the other figure
        engine.set_cost(cost)
        return engine.solve(deadline, options)

    def start(self, recomputes: Sequence[FlatRecompute], stretches: Sequence[StorageStretch]) -> np.ndarray:
        """Return the values of the binary variables for a schedule. Other values are NaN."""
        operations, uses = self.about.operations, {s: set(self._rows.uses(s)) for s in self._maker}
        run, away, back = set[tuple[int, int]](), set[tuple[int, int]](), set[tuple[int, int]]()
        for recompute in recomputes:
            t, n = self._number[recompute.before], self._number[recompute.op]
            run.add((t, n))
            for s in self.problem.reads[recompute.op]:
                uses[s].add(t)
            for s in self.problem.writes[recompute.op]:
                before = max(use for use in uses[s] if use < t)
                away |= {(stage, s) for stage in range(before + 1, t + 1)}
        for s, gone, returned in stretches:
            back.add((self._number[returned] - 1, s))
            away |= {(stage, s) for stage in range(bisect_left(operations, gone), self._number[returned])}
        hold = {(t, s) for t, s in self._model.hold if t <= max(uses[s]) and (t, s) not in away}
        hold |= {key for key, variable in self._model.hold.items() if variable.lb == 1}
        out = {s for s, *_ in stretches}
        x = np.full(len(self.engine.cost), np.nan)
        m = self._model
        for variables, taken in ((m.run, run), (m.hold, hold), (m.back, back), (m.out, out)):
            for key, column in zip(variables, self.engine.columns(variables.values()).tolist(), strict=True):
                if column >= 0:
                    x[column] = float(key in taken)
        return x

    def recomputes(self, x: np.ndarray) -> tuple[FlatRecompute, ...]:
        """Return the recomputations of an integral solution."""
        operations = self.about.operations
        runs = sorted(self._taken(x, self._model.run))
        return tuple(FlatRecompute(operations[n], operations[t]) for t, n in runs)

    def stretches(self, x: np.ndarray) -> list[StorageStretch]:
        """Return the times in storage of an integral solution."""
        hold, runs = set(self._taken(x, self._model.hold)), set(self._taken(x, self._model.run))
        operations, away = self.about.operations, list[StorageStretch]()
        for t, s in sorted(self._taken(x, self._model.back)):
            left = t  # the last stage in which the storage is in memory
            while left > self._maker[s] and (left, s) not in hold and (left, self._maker[s]) not in runs:
                left -= 1
            if left < t and (t + 1, s) in hold:
                away.append(StorageStretch(s, operations[left + 1], operations[t + 1]))
        return away

    def _taken(self, x: np.ndarray, variables: Any) -> list[tuple[int, int]]:
        taken = binaries(x, self.engine.columns(variables.values()))
        return [key for key, chosen in zip(variables, taken.tolist(), strict=True) if chosen]

    def _build(self) -> Model:
        m = self._variables()
        run, hold, free, back = (dict(v.items()) for v in (m.run, m.hold, m.free, m.back))
        variables = _Terms(run, hold, free, back, dict(m.out.items()), dict(m.level.items()), m.peak)
        self._rows.hold_pinned(variables)
        rows: list[Any] = []
        for t in range(len(self.about.operations)):
            present = [n for n in range(t + 1) if self._rows.run(variables, t, n) is not None]
            for n in present:
                rows += self._rows.needs(variables, t, n)
            for s in self._maker:
                if self._maker[s] <= t <= self.about.until[s]:
                    uses = [k for k in self._rows.uses(s) if k in present]
                    rows += self._rows.deaths(variables, t, s, uses, variables.back.get((t, s), 0))
            rows += self._memory(variables, t, present)
        rows += self._storage(variables)
        m.rows = constraints(rows)
        self._figures(m, variables)
        m.goal = pyo.Objective(expr=m.energy + m.time)
        return m

    def _variables(self) -> Any:
        about, m = self.about, pyo.ConcreteModel()
        end = len(about.operations)
        stages = {s: self._rows.stages(s) for s in self._maker}
        m.run = pyo.Var(self._rows.run_keys(), domain=pyo.Binary)
        m.hold = pyo.Var(sorted((t, s) for s in stages for t in stages[s]), domain=pyo.Binary)
        m.back = pyo.Var(sorted((t, s) for s in self._pages for t in stages[s][1:-1]), domain=pyo.Binary)
        m.out = pyo.Var(sorted(self._pages), domain=pyo.Binary)
        m.free = pyo.Var(list(self._rows.free_keys()), bounds=(0, 1))
        m.level = pyo.Var([(t, n) for t in range(end) for n in range(t + 1)], bounds=(0, None))
        m.peak, m.time, m.energy = (pyo.Var(bounds=(0, None)) for _ in range(3))
        return m

    def _memory(self, m: _Terms, t: int, present: list[int]) -> Iterator[Any]:
        problem, unit = self.problem, self._unit
        outside = sum(b for b, last in problem.tangents if problem.backward_start <= self.about.operations[t] <= last)
        held = [(m.hold[t, s], problem.size[s] / unit) for s in self._maker if (t, s) in m.hold and problem.size[s]]
        before: Any = sum(size * variable for variable, size in held) + outside / unit
        for n in present:
            i, run = self.about.operations[n], self._rows.run(m, t, n)
            written = sum(problem.size[s] for s in problem.writes[i]) / unit
            yield m.level[t, n] == before + written * run
            yield m.level[t, n] + problem.workspace[i] / unit * run <= m.peak
            ends = [(s, m.free[t, s, n]) for s in {*problem.reads[i], *problem.writes[i]} if (t, s, n) in m.free]
            before = m.level[t, n] - sum(problem.size[s] / unit * free for s, free in ends)

    def _storage(self, m: _Terms) -> Iterator[Any]:
        for (_, s), back in m.back.items():
            yield back <= m.out[s]
        for s, out in m.out.items():
            first = m.hold.get((self._maker[s] + 1, s))
            if first is None:
                out.setub(0)
            else:
                yield out <= first
        if self._pages:
            sizes = [self.problem.size[s] / self._unit for s in m.out]
            yield linear([*m.out.values()], sizes) <= self._limit / self._unit

    def _figures(self, m: Any, terms: _Terms) -> None:
        """Define time and energy beyond the baseline's."""
        operations, time = self.about.operations, self.problem.time
        again = [(variable, time[operations[n]] / self._percent) for (_, n), variable in terms.run.items()]
        size = self.problem.size
        backs = [(v, self._copies.back_ns(size[s]) / self._percent, t) for (t, s), v in terms.back.items()]
        outs = [(v, self._copies.out_ns(size[s]) / self._percent) for s, v in terms.out.items()]
        copies = [(variable, share * self._watts) for variable, share, *_ in (*backs, *outs)]
        m.wait = pyo.Var(bounds=(0, None if self._waits else 0))
        m.energy_is = pyo.Constraint(expr=_total([*again, *copies]) == m.energy)
        m.time_is = pyo.Constraint(expr=_total([*again, (m.wait, 1.0)]) == m.time)
        begins = np.concatenate(([0.0], np.cumsum([time[i] for i in operations]))) / self._percent
        last = sorted({t for _, _, t in backs})[:: max(1, len(operations) // 64)]

        def hidden(m: Any, t: int) -> Any:
            """Copies back that end in stage t or earlier fit into the time until its end."""
            due = [(variable, ns) for variable, ns, at in backs if at <= t]
            meanwhile = [(v, -time[operations[n]] / self._percent) for (at, n), v in terms.run.items() if at <= t]
            return _total([*due, *meanwhile, (m.wait, -1.0)]) <= float(begins[t + 1])

        m.hidden = pyo.Constraint(last if self._waits else [], rule=hidden)


class _Terms(NamedTuple):
    """The variables by their keys. A missing key means that there is no variable."""

    run: Mapping[tuple[int, int], Any]
    hold: Mapping[tuple[int, int], Any]
    free: Mapping[tuple[int, int, int], Any]
    back: Mapping[tuple[int, int], Any]
    out: Mapping[int, Any]
    level: Mapping[tuple[int, int], Any]
    peak: Any


def _total(terms: list[tuple[Any, float]]) -> Any:
    return linear([variable for variable, _ in terms], [weight for _, weight in terms])
