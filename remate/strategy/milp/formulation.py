"""The retention model in Pyomo, for any segments, stages and allowed recomputations.

Binary `hold[s, k]`: storage s is in memory when stage k begins (and since its last run). Binary `recompute[f, k]`: f
runs again in stage k. `peak`: bytes, bounded by the budget.

    minimise  sum of time[f] * recompute[f, k]                             or the peak
    need      hold[s, k] + recompute[producer(s), k] >= 1                  for every s that backward reads in stage k
    closure   recompute[f, k] <= hold[u, k] + recompute[producer(u), k]    for every forward storage u that f reads
    chain     hold[s, k'] <= hold[s, k] + recompute[producer(s), k]        for consecutive stages k < k' that may need s
    memory    base + sum of bytes * (hold, recompute alive there) <= peak  at every position that no other implies

    beside    other calls * (bytes held at the boundary) <= beside         of a part with several calls; at every row

Memory rows share most of their terms, so each is written as a level that changes from the previous row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from remate_runtime.link import ResidentBytes
from remate_runtime.support.gc_pause import gc_paused

from ..deadline import Deadline
from ..effort import Effort
from ..problem import Problem
from ..pyomo_api import LinearExpression, Model, pyo
from .highs import SMALLEST, Result, SolveOptions, binaries
from .solver_model import HIGHS, solver_model
from .windows import Key, RecomputeWindows, rows

PARTS = 1000.0  # memory is counted in thousandths of the reference, time in % of the step
INTEGRAL = 1e-6
TINY = 1e-7  # storages below this many parts of memory are left out: they only cost the solver


def linear(variables: list[Any], coefficients: Sequence[float] | None = None) -> Any:
    """Return a linear expression, built without the overhead of adding term by term."""
    return LinearExpression(linear_coefs=coefficients or [1] * len(variables), linear_vars=variables)


class Formulation:
    """The model of one choice of windows, solved for many budgets.

    Args:
        problem: The step.
        windows: Where operations may run again.
        reference: Bytes that scale memory (any peak).
        solver: Name of the solver of integer programs.
    """

    def __init__(self, problem: Problem, windows: RecomputeWindows, reference: int, solver: str = HIGHS) -> None:
        self.problem, self.windows = problem, windows
        self.unit = max(reference, 1) / PARTS
        self.percent = max(problem.baseline_time, 1) / 100.0
        with gc_paused():
            self.model: Any = self._build()
            self.engine = solver_model(self.model, solver)
        self.keys: list[Key] = [("hold", *key) for key in self.model.hold] + [
            ("recompute", *key) for key in self.model.recompute
        ]
        self.columns = self.engine.columns([*self.model.hold.values(), *self.model.recompute.values()])
        self._levels = self.engine.columns(self.model.level.values())
        self._peak = self.engine.columns([self.model.peak])
        self._others = self.engine.columns([self.model.beside]) if problem.graph.calls > 1 else self._peak[:0]
        self.time_cost = self.engine.cost.copy()

    def _build(self) -> Model:
        windows, problem = self.windows, self.problem
        m: Any = pyo.ConcreteModel()
        m.hold = pyo.Var([(s, k) for s, ks in windows.stages.items() for k in ks], domain=pyo.Binary)
        m.recompute = pyo.Var(list(windows.position), domain=pyo.Binary)
        m.peak = pyo.Var(bounds=(0, None))

        def available(s: int, k: int) -> list[Any]:
            key = problem.producer[s], k
            return [m.hold[s, k], m.recompute[key]] if key in windows.position else [m.hold[s, k]]

        def need(m: Any, s: int, k: int) -> Any:
            return linear(available(s, k)) >= 1

        def closure(m: Any, f: int, k: int, u: int) -> Any:
            return linear([*available(u, k), m.recompute[f, k]], [*[1] * len(available(u, k)), -1]) >= 0

        def chain(m: Any, s: int, k: int, later: int) -> Any:
            return linear([*available(s, k), m.hold[s, later]], [*[1] * len(available(s, k)), -1]) >= 0

        m.need = pyo.Constraint(sorted(windows.read), rule=need)
        m.closure = pyo.Constraint([(f, k, u) for f, k in windows.position for u in problem.reads[f]], rule=closure)
        m.chain = pyo.Constraint(
            [(s, ks[n], ks[n + 1]) for s, ks in windows.stages.items() for n in range(len(ks) - 1)], rule=chain
        )
        self._memory(m)
        cost = [max(problem.time[f], 1) / self.percent for f, _ in windows.position]
        m.time = pyo.Objective(expr=linear(list(m.recompute.values()), cost))
        return m

    def _memory(self, m: Any) -> None:
        self.rows = rows(self.problem, self.windows)
        m.level = pyo.Var(range(len(self.rows)))
        variables = {"hold": m.hold, "recompute": m.recompute}

        def change(m: Any, n: int) -> Any:
            parts = [(variables[kind][a, k], amount / self.unit) for (kind, a, k), amount in self.rows[n].change]
            parts = [(v, amount) for v, amount in parts if abs(amount) >= TINY]
            before = [(m.level[n - 1], 1.0)] if n else []
            terms = [(m.level[n], -1.0), *before, *parts]
            return linear([v for v, _ in terms], [c for _, c in terms]) == 0

        m.change = pyo.Constraint(range(len(self.rows)), rule=change)
        beside = self._beside(m) if self.problem.graph.calls > 1 else 0

        def memory(m: Any, n: int) -> Any:
            return m.level[n] + self.rows[n].base / self.unit + beside <= m.peak

        m.memory = pyo.Constraint(range(len(self.rows)), rule=memory)

    def _beside(self, m: Any) -> Any:
        """Return bytes of the other calls of a part: those held when the first stage that may need them begins."""
        problem, graph = self.problem, self.problem.graph
        sizes = {s: problem.size[s] for s in self.windows.stages if s not in problem.pinned and problem.size[s]}
        least = max(0, problem.held.kept - sum(sizes.values()))
        others = graph.calls - 1
        m.beside = pyo.Var(
            bounds=(
                ResidentBytes(least, problem.held.gradients).beside(graph, graph.delivered == "retained") / self.unit,
                None,
            )
        )
        variables = [m.hold[s, self.windows.stages[s][0]] for s in sizes]
        coefficients = [others * size / self.unit for size in sizes.values()]
        m.others = pyo.Constraint(
            expr=linear([*variables, m.beside], [*coefficients, -1.0]) <= -others * least / self.unit
        )
        return m.beside

    def solve(
        self,
        deadline: Deadline,
        budget: float,
        effort: Effort,
        *,
        gap: float,
        enough: int = 0,
        start: Mapping[Key, bool] | None = None,
        stage: str = "",
    ) -> Result:
        """Return the least additional time under a budget. Both searches together take the work of the effort.

        Args:
            deadline: Ends the solve early.
            budget: Bytes.
            effort: How hard to search.
            gap: Share of the step's time at which the solve stops.
            enough: ns of the step that end the solve.
            start: A first solution.
            stage: Text for progress lines.
        """
        gap, goal = 100.0 * gap, enough / self.percent - 100.0
        options = SolveOptions(stage=stage, work=effort.work)
        self.engine.set_bounds(self._peak, np.array([0.0]), np.array([budget / self.unit]))
        self.engine.set_cost(self.time_cost)
        relaxed = self.engine.solve(deadline, structs.replace(options, relax=True))
        if relaxed.x is None:
            return relaxed
        options = structs.replace(options, target=goal, nodes=effort.nodes)
        near = self._near(deadline, relaxed, structs.replace(options, absolute_gap=gap / 2))
        left = effort.work - near.work
        if near.x is not None:
            if near.objective <= max(goal, relaxed.objective + gap):
                return Result("gap", near.x, near.objective, relaxed.objective, near.work)
            if left <= 0:
                return Result("iterations", near.x, near.objective, relaxed.objective, near.work)
            first = near.x
        else:
            first = self._start(start)
        work = left if near.x is not None else effort.work
        options = structs.replace(options, absolute_gap=gap, start=first, work=work)
        result = self.engine.solve(deadline, options)
        return structs.replace(result, work=result.work + near.work)

    def _near(self, deadline: Deadline, relaxed: Result, options: SolveOptions) -> Result:
        """Return the best solution that agrees with the relaxation where that is integral. It is mostly good, and
        fast to find."""
        assert relaxed.x is not None
        columns = self.columns[self.columns >= 0]
        value = relaxed.x[columns]
        fixed = np.abs(value - np.round(value)) < INTEGRAL
        settled, whole = columns[fixed], np.round(value[fixed])
        lower, upper = self.engine.lower[settled].copy(), self.engine.upper[settled].copy()
        self.engine.set_bounds(settled, whole, whole)
        result = self.engine.solve(deadline, options)
        self.engine.set_bounds(settled, lower, upper)
        return result

    def priced(self, deadline: Deadline, cost: np.ndarray, budget: float, effort: Effort) -> Result:
        """Return the least `cost` (by column) under `budget` bytes."""
        self.engine.set_bounds(self._peak, np.array([0.0]), np.array([budget / self.unit]))
        self.engine.set_cost(cost)
        return self.engine.solve(
            deadline, SolveOptions(stage="block", relative_gap=1e-4, nodes=effort.nodes, work=effort.work)
        )

    def smallest(self, deadline: Deadline, effort: Effort, *, tolerance: float) -> Result:
        """Return the least peak (in units), up to a share `tolerance` of it."""
        self.engine.set_bounds(self._peak, np.array([0.0]), np.array([np.inf]))
        cost = np.zeros_like(self.time_cost)
        cost[self._peak] = 1.0
        self.engine.set_cost(cost)
        return self.engine.solve(
            deadline,
            SolveOptions(stage=SMALLEST, relative_gap=tolerance, nodes=effort.nodes, work=effort.work),
        )

    def _start(self, start: Mapping[Key, bool] | None) -> np.ndarray | None:
        if start is None:
            return None
        x = np.full(len(self.engine.cost), np.nan)
        for key, column in zip(self.keys, self.columns, strict=True):
            if column >= 0 and key in start:
                x[column] = float(start[key])
        return x

    def peak(self, result: Result) -> float:
        """Return bytes that the formulation counts for a solution."""
        assert result.x is not None
        base = np.array([row.base for row in self.rows])
        beside = float(np.sum(result.x[self._others])) * self.unit
        return float(np.max(result.x[self._levels] * self.unit + base, initial=0.0)) + beside

    def chosen(self, result: Result) -> dict[Key, bool]:
        """Return the values of all hold and recompute variables."""
        assert result.x is not None
        return dict(zip(self.keys, binaries(result.x, self.columns).tolist(), strict=True))
