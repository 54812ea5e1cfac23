"""The best choice at one operation between keeping, recomputing and paging, and a lower bound of the time.

While operation k of backward runs, each forward storage that is needed later is in memory, or its producer runs again
after k, or it is away. Everything away has left through the lanes before k, and returns through them before its first
read after k. With copies relaxed to prefix sums, no schedule with pages beats the optimum of the program

    minimise  sum of time[f] * recompute[f] + before + after
    need      hold[s] + recompute[producer(s)] + page[s] >= 1       for every s that an operation after k reads
    closure   recompute[f] <= hold[u] + recompute[producer(u)] + page[u]   for every forward storage u that f reads
    memory    sum of bytes[s] * hold[s] <= budget - forced[k]
    out       bytes paged of storages that forward makes after p <= out * (time from p to k + before)    for each p
    back      bytes paged that are read before q <= back * (time from k to q + recomputations + after)   for each q
    storage   bytes paged <= limit

`before` and `after` are extra times of any kind before k and after it. Latencies are left out. Of the prefixes p and q
of a large step, only some have a row, which keeps the program small and its optimum a bound. The optimum at the fullest
operation also says what to recompute and what to page; `mixed` starts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatRecompute, held_outside, stays
from remate_runtime.format import PageMemory
from remate_runtime.support.gc_pause import gc_paused

from ..bound.cut_step import useful
from ..bound.cuts import records
from ..bound.floor import arguments, forced_bytes
from ..deadline import Deadline
from ..effort import Effort
from ..instance import StepInstance
from ..milp.formulation import PARTS, linear
from ..milp.highs import HighsModel, Result, SolveOptions, binaries
from ..problem import Problem
from ..pyomo_api import Model, pyo

_CUTS = 6  # operations whose relaxation is solved
_GAP = 0.02  # percent of the baseline's time
_PREFIXES = 48  # most rows of each lane
_TOLERANCE = 1e-6  # share of the proven extra time that the solver may be wrong by


class CutChoice(NamedTuple):
    """A choice at a cut, empty if the program ended without one.

    recomputes: Recomputations after it. pages: Values to page. bound: Least ns of any schedule that recomputes, and
    pages results of forward.
    """

    recomputes: tuple[FlatRecompute, ...]
    pages: frozenset[int]
    bound: int


def best_choice(
    instance: StepInstance,
    budget: int,
    limits: Mapping[PageMemory, int],
    effort: Effort,
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> CutChoice | None:
    """Return the choice at the operation with the largest bound, or None if no bound is proven.

    Args:
        instance: The step, with the lanes of its graph.
        budget: Most bytes on the device.
        limits: Most bytes in each memory that is paged to.
        effort: How hard to search.
        time_limit: Seconds.
        progress: Called with a line of text.
    """
    problem, forced = instance.problem, forced_bytes(instance.problem)
    with Deadline(time_limit, progress) as deadline:
        scored: list[tuple[float, int]] = []
        for k in records(problem, forced, _CUTS):
            result = _PagedCut(instance, limits, k, forced).solve(deadline, budget, effort, relax=True)
            if result.x is not None:
                scored.append((max(0.0, result.bound), k))
        if not scored:
            return None
        relaxed, k = max(scored)
        cut = _PagedCut(instance, limits, k, forced)
        result = cut.solve(deadline, budget, effort, relax=False)
    percent = max(problem.baseline_time, 1) / 100.0
    extra = max(relaxed, result.bound if result.bound < float("inf") else 0.0)
    bound = problem.baseline_time + int(extra * percent * (1 - _TOLERANCE))
    if result.x is None:
        return CutChoice((), frozenset(), bound)
    return CutChoice(cut.recomputes(result.x), cut.pages(result.x), bound)


class _PagedCut:
    def __init__(self, instance: StepInstance, limits: Mapping[PageMemory, int], k: int, forced: np.ndarray) -> None:
        self.problem, self.k, self._forced = instance.problem, k, forced
        self._unit = max(instance.baseline.peak, 1) / PARTS
        self._percent = max(self.problem.baseline_time, 1) / 100.0
        self.operations, self.storages = useful(self.problem)
        outside, problem = held_outside(instance.graph), self.problem
        self._pageable = [
            s
            for s in self.storages
            if problem.producer[s] < min(k, problem.backward_start)
            and problem.size[s]
            and not stays(instance.graph, s, outside)
        ]
        lanes = [instance.graph.lanes[memory] for memory in limits]
        self._out, self._back = sum(lane.out for lane in lanes), sum(lane.back for lane in lanes)
        self._limit = sum(limits.values())
        times = [time if real else 0 for time, real in zip(problem.time, problem.real, strict=True)]
        self._begins = np.concatenate(([0.0], np.cumsum(times)))
        with gc_paused():
            self.model: Any = self._build()
            self.engine = HighsModel(self.model)

    def _build(self) -> Model:
        problem = self.problem
        m: Any = pyo.ConcreteModel()
        wanted = set(self.storages)
        read = set(arguments(problem, self.k))

        def held(m: Any, s: int) -> tuple[int, int]:
            return int(s in read), 1

        def again(m: Any, f: int) -> tuple[int, int]:
            return 0, int(f not in problem.once)

        m.hold = pyo.Var(self.storages, domain=pyo.Binary, bounds=held)
        m.recompute = pyo.Var(self.operations, domain=pyo.Binary, bounds=again)
        m.page = pyo.Var(self._pageable, domain=pyo.Binary)
        m.before, m.after = pyo.Var(bounds=(0, None)), pyo.Var(bounds=(0, None))

        def ways(s: int) -> list[Any]:
            return [m.hold[s], m.recompute[problem.producer[s]], *([m.page[s]] if s in m.page else [])]

        def need(m: Any, s: int) -> Any:
            return linear(ways(s)) >= 1

        def closure(m: Any, f: int, u: int) -> Any:
            return linear([*ways(u), m.recompute[f]], [*[1] * len(ways(u)), -1]) >= 0

        later = [s for s in self.storages if self._first_read(s) is not None]
        pairs = [(f, u) for f in self.operations for u in problem.reads[f] if u in wanted]
        m.need = pyo.Constraint(later, rule=need)
        m.closure = pyo.Constraint(pairs, rule=closure)
        sizes = [problem.size[s] / self._unit for s in self.storages]
        m.free = pyo.Param(initialize=0.0, mutable=True)
        m.memory = pyo.Constraint(expr=linear([*m.hold.values()], sizes) <= m.free)
        self._lanes(m)
        cost = [problem.time[f] / self._percent for f in self.operations]
        m.time = pyo.Objective(expr=linear([*m.recompute.values(), m.before, m.after], [*cost, 1.0, 1.0]))
        return m

    def _first_read(self, s: int) -> int | None:
        """Return the first backward operation after the cut that reads a storage, or None."""
        return next((i for i in self.problem.readers[s] if i > self.k and i >= self.problem.backward_start), None)

    def _lanes(self, m: Any) -> None:
        problem, unit, begins = self.problem, self._unit, self._begins
        by_age = sorted(self._pageable, key=lambda s: -problem.producer[s])
        end = len(problem.real)
        read = sorted(self._pageable, key=lambda s: self._first_read(s) or end)
        ends = _ends(len(by_age))
        numbers = range(len(ends))
        m.gone, m.returned, m.again = pyo.Var(numbers), pyo.Var(numbers), pyo.Var()
        m.total = pyo.Constraint(
            expr=linear(
                [m.again, *m.recompute.values()], [-1.0, *(problem.time[f] / self._percent for f in self.operations)]
            )
            == 0
        )

        def summed(level: Any, order: list[int]) -> Callable[[Any, int], Any]:
            def rule(m: Any, n: int) -> Any:
                group = order[ends[n - 1] if n else 0 : ends[n]]
                before = [level[n - 1]] if n else []
                weights = [-1.0, *(problem.size[s] / unit for s in group), *[1.0] * len(before)]
                return linear([level[n], *(m.page[s] for s in group), *before], weights) == 0

            return rule

        m.out_sum = pyo.Constraint(numbers, rule=summed(m.gone, by_age))
        m.back_sum = pyo.Constraint(numbers, rule=summed(m.returned, read))
        out, back = self._out / 1e9 / unit, self._back / 1e9 / unit  # units per ns

        def leaves(m: Any, n: int) -> Any:
            oldest = by_age[ends[n] - 1]
            available = out * (begins[self.k] - begins[problem.producer[oldest] + 1])
            return linear([m.gone[n], m.before], [1.0, -out * self._percent]) <= float(available)

        def returns(m: Any, n: int) -> Any:
            available = back * (begins[self._first_read(read[ends[n] - 1]) or end] - begins[self.k])
            slope = -back * self._percent
            return linear([m.returned[n], m.after, m.again], [1.0, slope, slope]) <= float(available)

        m.leaves = pyo.Constraint(numbers, rule=leaves)
        m.returns = pyo.Constraint(numbers, rule=returns)
        if by_age:
            stored: Any = m.gone[len(ends) - 1]
            m.storage = pyo.Constraint(expr=stored <= self._limit / unit)

    def solve(self, deadline: Deadline, budget: int, effort: Effort, *, relax: bool) -> Result:
        """Solve for a budget. The objective is extra time in percent of the baseline's."""
        self.model.free = (budget - int(self._forced[self.k])) / self._unit
        self.engine.update([self.model.memory])
        options = SolveOptions(
            stage="pages at one cut", absolute_gap=_GAP, nodes=effort.nodes, work=effort.work, relax=relax
        )
        return self.engine.solve(deadline, options)

    def pages(self, x: np.ndarray) -> frozenset[int]:
        """Return the values that a solution pages."""
        return frozenset(self._taken(x, self.model.page))

    def recomputes(self, x: np.ndarray) -> tuple[FlatRecompute, ...]:
        """Return the recomputations of a solution, each just before its first need."""
        kept = {*self._taken(x, self.model.hold), *self._taken(x, self.model.page)}
        point: dict[int, int] = {}
        for f in sorted(self._taken(x, self.model.recompute), reverse=True):
            point |= _first_need(self.problem, f, self.k, kept, point)
        return tuple(FlatRecompute(f, at) for f, at in sorted(point.items(), key=lambda item: (item[1], item[0])))

    def _taken(self, x: np.ndarray, variables: Any) -> list[int]:
        taken = binaries(x, self.engine.columns(variables.values()))
        return [key for key, chosen in zip(variables, taken.tolist(), strict=True) if chosen]


def _ends(count: int) -> list[int]:
    """Return the lengths of at most `_PREFIXES` prefixes of a list of `count` elements, the whole list last."""
    rows = min(count, _PREFIXES)
    return [round((n + 1) * count / rows) for n in range(rows)]


def _first_need(problem: Problem, f: int, k: int, kept: set[int], point: Mapping[int, int]) -> dict[int, int]:
    """Return the point before which recomputation f is first needed, as a dictionary; empty if nothing needs it."""
    needs = [
        i if i >= problem.backward_start else point[i]
        for s in problem.writes[f]
        if s not in kept
        for i in problem.readers[s]
        if (i > k if i >= problem.backward_start else i in point)
    ]
    return {f: min(needs)} if needs else {}
