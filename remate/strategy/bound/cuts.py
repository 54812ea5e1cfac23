"""A lower bound on the time of any schedule of a graph under a budget.

Take cuts: operations k1 < k2 < … of the backward. Whatever the schedule, a forward storage that some operation after a
cut reads is resident while the cut's operation runs, or its producer runs again after the cut (and then whatever that
producer reads is resident, or made again after the cut, too). What is resident fits into what the budget leaves beside
the bytes that are live there in any schedule. What is resident at a later cut was resident at the earlier one, or made
again between them. So, with hold[s, c] and rerun[f, c] (f runs again after cut c and before the next),

    minimise  sum of time[f] * rerun[f, c]
    need      hold[s, c] + rerun[producer(s), c] >= 1       for every s that backward reads between cut c and the next
    closure   rerun[f, c] <= hold[u, c] + rerun[producer(u), c]    for every forward storage u that f reads
    chain     hold[s, c + 1] <= hold[s, c] + rerun[producer(s), c]
    memory    sum of bytes[s] * hold[s, c] <= budget - forced[c]

has an optimum that no schedule beats. Any dual bound of it will do. Assumptions, all of them the format's own rules:
the forward, then the backward operations run once each in the given order; besides, forward operations run again,
whole, anywhere; a storage is resident in full or not at all; operations cost what the profile says. No partition is
assumed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo

from remate_runtime.gc_pause import gc_paused

from ..base import Bound, Context, Request
from ..deadline import Deadline
from ..effort import Effort
from ..instance import Instance
from ..milp.formulation import PARTS, linear
from ..milp.highs import SOLVER, Engine, Result
from ..problem import Problem
from .floor import arguments, forced_bytes

EXACT = 2500  # variables up to which integrality is enforced
COUNTS = (2, 3, 4, 6)  # cuts taken together


def one_cut(instance: Instance, request: Request, context: Context) -> int:
    """The best bound of a single cut. Cut short, it is the trivial one: every operation once."""
    problem, single = instance.problem, instance.view(cut_model, 1)
    forced = forced_bytes(problem)
    candidates = _records(problem, forced, request.effort.cuts)
    ask = _Asked(single, request, context.deadline, forced)
    found = [(ask.proven([k], relax=True), k) for k in candidates]
    if not found:
        return problem.baseline_time
    best, at = max(found)
    if best < float("inf") and single.variables <= EXACT:  # else the relaxation says nearly as much
        best = max(best, ask.proven([at], relax=False))
    return single.nanoseconds(best)


def several_cuts(instance: Instance, request: Request, context: Context) -> int:
    """The best bound of several cuts at once: what must run again before each of several peaks of the backward. Worth its
    time on small steps; larger ones get the trivial bound. Stops when no schedule can be much better than the best one
    known."""
    problem, single = instance.problem, instance.view(cut_model, 1)
    proven = problem.baseline_time
    if single.variables > EXACT or context.best is None:
        return proven
    forced, wanted = forced_bytes(problem), context.best.time - context.slack
    places = sorted({*_peaks(problem, forced, request.effort.cuts), *_records(problem, forced, request.effort.cuts)})
    ask = _Asked(single, request, context.deadline, forced)
    scored = sorted(((ask.proven([k], relax=True), k) for k in places), key=lambda score: (-score[0], score[1]))
    for count in COUNTS:
        if count > len(scored) or count * single.variables > EXACT or proven >= wanted or context.deadline.stopped():
            break
        together = instance.view(cut_model, count)
        chosen = sorted(k for _, k in scored[:count])
        best = _Asked(together, request, context.deadline, forced).proven(chosen, relax=False)
        proven = max(proven, together.nanoseconds(best))
    return proven


class _Asked:
    """A model asked under one budget."""

    def __init__(self, model: CutModel, request: Request, deadline: Deadline, forced: np.ndarray) -> None:
        self.model, self.request, self.deadline, self.forced = model, request, deadline, forced

    def proven(self, places: list[int], *, relax: bool) -> float:
        """Extra time in % of the step; infinite where nothing fits."""
        request = self.request
        result = self.model.solve(self.deadline, request.budget, request.effort, places, self.forced, relax=relax)
        return max(0.0, result.bound) if result.status != "failed" else 0.0


def _peaks(problem: Problem, forced: np.ndarray, most: int) -> list[int]:
    """Backward operations where more must be live than at their neighbours, the highest ones, in order."""
    level = [(int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i)), i) for i in problem.backward]
    high = [
        level[n]
        for n in range(len(level))
        if (n == 0 or level[n - 1][0] < level[n][0]) and (n + 1 == len(level) or level[n + 1][0] <= level[n][0])
    ]
    return sorted(i for _, i in sorted(high, reverse=True)[:most])


def _records(problem: Problem, forced: np.ndarray, most: int) -> list[int]:
    """Backward operations where more must be live than at any before: elsewhere an earlier cut says as much."""
    records: list[int] = []
    highest = -1
    for i in problem.backward:
        level = int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i))
        if level > highest:
            records.append(i)
            highest = level
    if len(records) <= most:
        return records
    return [records[round(n * (len(records) - 1) / (most - 1))] for n in range(most)]


class CutModel:
    """The model for a number of cuts; their places and the budget change between solves."""

    def __init__(self, problem: Problem, count: int, reference: int) -> None:
        self.problem, self.count, self.reference = problem, count, reference
        self.unit = max(reference, 1) / PARTS
        self.percent = max(problem.baseline_time, 1) / 100.0
        self._useful()
        with gc_paused():
            self.model: Any = self._build()
            self.engine = Engine(self.model)
        self.variables = len(self.engine.cost)
        self._hold = {key: self.engine.column(v) for key, v in self.model.hold.items()}

    def _useful(self) -> None:
        """Forward operations and storages that a rerun could ever need."""
        problem = self.problem
        useful: set[int] = set()
        wanted: set[int] = set()
        for f in reversed(problem.forward):
            outputs = [s for s in problem.writes[f] if s not in problem.pinned]
            if any(i >= problem.backward_start or i in useful for s in outputs for i in problem.readers[s]):
                useful.add(f)
        self.operations = sorted(useful)
        for f in self.operations:
            for s in problem.writes[f]:
                if s not in problem.pinned and any(
                    i >= problem.backward_start or i in useful for i in problem.readers[s]
                ):
                    wanted.add(s)
        self.storages = sorted(wanted)
        self.last = {s: self.problem.readers[s][-1] for s in self.storages}

    def _build(self) -> pyo.ConcreteModel:
        problem, cuts = self.problem, range(self.count)
        wanted = set(self.storages)
        m: Any = pyo.ConcreteModel()
        m.free = pyo.Param(cuts, initialize=0.0, mutable=True)  # bytes left beside what is live in any schedule
        m.hold = pyo.Var(self.storages, cuts, domain=pyo.Binary)
        m.rerun = pyo.Var(self.operations, cuts, domain=pyo.Binary)

        def available(s: int, c: int) -> list[Any]:
            return [m.hold[s, c], m.rerun[problem.producer[s], c]]

        m.need = pyo.Constraint(self.storages, cuts, rule=lambda m, s, c: linear(available(s, c)) >= 0)
        pairs = [(f, u) for f in self.operations for u in problem.reads[f] if u in wanted]
        m.closure = pyo.Constraint(
            pairs, cuts, rule=lambda m, f, u, c: linear([*available(u, c), m.rerun[f, c]], [1, 1, -1]) >= 0
        )
        m.chain = pyo.Constraint(
            self.storages,
            range(self.count - 1),
            rule=lambda m, s, c: linear([*available(s, c), m.hold[s, c + 1]], [1, 1, -1]) >= 0,
        )
        sizes = [problem.size[s] / self.unit for s in self.storages]
        m.memory = pyo.Constraint(
            cuts, rule=lambda m, c: linear([m.hold[s, c] for s in self.storages], sizes) <= m.free[c] / self.unit
        )
        cost = [problem.time[f] / self.percent for f in self.operations for _ in cuts]
        m.time = pyo.Objective(expr=linear([m.rerun[f, c] for f in self.operations for c in cuts], cost))
        return m

    def nanoseconds(self, extra: float) -> int:
        """Time of the step from extra time in %; the trivial bound where nothing fits, for which any statement is true."""
        base = self.problem.baseline_time
        return base if extra == float("inf") else base + max(0, int(extra * self.percent * (1 - 1e-6)))

    def solve(
        self,
        deadline: Deadline,
        budget: int,
        effort: Effort,
        places: list[int],
        forced: np.ndarray,
        *,
        relax: bool,
    ) -> Result:
        """Extra time in % of the step with cuts at the operations `places`, ascending."""
        infinity = float("inf")
        columns, lower = [], []
        for c, (k, until) in enumerate(zip(places, [*places[1:], len(self.problem.real)], strict=True)):
            self.model.free[c].set_value(budget - int(forced[k]))
            resident = set(arguments(self.problem, k))
            for s in self.storages:
                read = any(k < i < until for i in self.problem.readers[s])
                self.engine.set_rhs(self.model.need[s, c], float(read), infinity)
                columns.append(self._hold[s, c])
                lower.append(float(s in resident))
        self.engine.set_bounds(np.array(columns), np.array(lower), np.ones(len(lower)))
        self.engine.update(self.model.memory.values())
        return self.engine.solve(deadline, stage="bound", nodes=effort.nodes, work=effort.work, relax=relax)


def cut_model(instance: Instance, count: int) -> CutModel:
    """The model of `count` cuts of a step."""
    return CutModel(instance.problem, count, instance.baseline.peak)


CUT = Bound(
    "cut",
    "integer program: what must run again after one operation of the backward",
    one_cut,
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
CUTS = Bound(
    "cuts",
    "the same with several operations at once, on small steps",
    several_cuts,
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
