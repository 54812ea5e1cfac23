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

from ..milp.formulation import PARTS, linear
from ..milp.highs import Control, Engine, Result
from ..problem import Problem

SCAN = 24  # cuts tried one by one
EXACT = 2500  # variables up to which integrality is enforced
NODES = 60
COUNTS = (2, 3, 4, 6)  # cuts taken together


def lower_bound(single: CutModel, budget: int, control: Control) -> int:
    """A time in ns that any schedule under `budget` bytes takes. If interrupted, the trivial one: every operation
    once. single: the model of one cut."""
    problem = single.problem
    forced = forced_bytes(problem)
    candidates = _records(problem, forced, SCAN)
    if not candidates:
        return problem.baseline_time
    found = [(_proven(single.solve(control, budget, [k], forced, relax=True)), k) for k in candidates]
    best, at = max(found)
    if best < float("inf") and single.variables <= EXACT:  # else the relaxation says nearly as much
        best = max(best, _proven(single.solve(control, budget, [at], forced, relax=False)))
    if best == float("inf"):
        return problem.baseline_time  # infeasible: any statement is true, this one is harmless
    return problem.baseline_time + max(0, int(best * single.percent * (1 - 1e-6)))


def stronger_bound(single: CutModel, budget: int, control: Control, *, enough: int) -> int:
    """As `lower_bound`, with several cuts at once: what must run again before each of several peaks of the backward.
    Worth its time on small steps; larger ones get the trivial bound. Stops when `enough` ns are proven."""
    problem = single.problem
    forced = forced_bytes(problem)
    proven = problem.baseline_time
    if single.variables > EXACT:
        return proven
    places = sorted({*_peaks(problem, forced), *_records(problem, forced, SCAN)})
    scored = [(_proven(single.solve(control, budget, [k], forced, relax=True)), k) for k in places]
    scored.sort(key=lambda score: (-score[0], score[1]))
    for count in COUNTS:
        if count > len(scored) or count * single.variables > EXACT or proven >= enough or control.stopped():
            break
        cuts = CutModel(problem, count, single.reference)
        places = sorted(k for _, k in scored[:count])
        best = _proven(cuts.solve(control, budget, places, forced, relax=False))
        if best < float("inf"):
            proven = max(proven, problem.baseline_time + int(best * single.percent * (1 - 1e-6)))
    return proven


def _peaks(problem: Problem, forced: np.ndarray) -> list[int]:
    """Backward operations where more must be live than at their neighbours, the highest ones, in order."""
    level = [(int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i)), i) for i in problem.backward]
    high = [
        level[n]
        for n in range(len(level))
        if (n == 0 or level[n - 1][0] < level[n][0]) and (n + 1 == len(level) or level[n + 1][0] <= level[n][0])
    ]
    return sorted(i for _, i in sorted(high, reverse=True)[:SCAN])


def _proven(result: Result) -> float:
    return max(0.0, result.bound) if result.status != "failed" else 0.0


def forced_bytes(problem: Problem) -> np.ndarray:
    """By operation: bytes live while it runs in any schedule, its arguments from the forward apart: what it makes, its
    workspace, backward values still to be read, gradients already made, and after the turn the outputs of the model
    (before it, they too can be dropped and made again)."""
    steps = len(problem.real)
    change = np.zeros(steps + 1, dtype=np.int64)
    for size, last in problem.tangents:
        change[problem.backward_start] += size
        change[last + 1] -= size
    for i in range(steps):
        if not problem.real[i]:
            continue
        change[i] += problem.workspace[i]
        change[i + 1] -= problem.workspace[i]
        for s in problem.writes[i]:
            last = i
            if i >= problem.backward_start and s in problem.gradients:
                last = steps - 1
            elif i >= problem.backward_start and problem.readers[s]:
                last = problem.readers[s][-1]
                last -= problem.overwrites[last] == s
            if _shares(problem, i):
                change[i + 1] += problem.size[s]
            else:
                change[i] += problem.size[s]
            change[max(last, i) + 1] -= problem.size[s]
    change[problem.backward_start] += sum(
        problem.size[s] for s in problem.returned if problem.producer[s] < problem.backward_start
    )
    return np.cumsum(change)[:steps]


def _shares(problem: Problem, i: int) -> bool:
    """Whether operation i may write over a forward storage: its output then needs no bytes of its own."""
    return any(problem.producer[s] < problem.backward_start for s in problem.may_overwrite[i])


def arguments(problem: Problem, i: int) -> list[int]:
    """Forward storages that must be resident while operation i runs, and that `forced_bytes` does not count."""
    counted = problem.returned if i >= problem.backward_start else frozenset()
    return [s for s in problem.reads[i] if problem.producer[s] < problem.backward_start and s not in counted]


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
        m.memory = pyo.Constraint(cuts, rule=lambda m, c: linear([m.hold[s, c] for s in self.storages], sizes) <= 0)
        cost = [problem.time[f] / self.percent for f in self.operations for _ in cuts]
        m.time = pyo.Objective(expr=linear([m.rerun[f, c] for f in self.operations for c in cuts], cost))
        return m

    def solve(self, control: Control, budget: int, places: list[int], forced: np.ndarray, *, relax: bool) -> Result:
        """Extra time in % of the step with cuts at the operations `places`, ascending."""
        infinity = float("inf")
        columns, lower = [], []
        for c, (k, until) in enumerate(zip(places, [*places[1:], len(self.problem.real)], strict=True)):
            self.engine.set_rhs(self.model.memory[c], -infinity, (budget - int(forced[k])) / self.unit)
            resident = set(arguments(self.problem, k))
            for s in self.storages:
                read = any(k < i < until for i in self.problem.readers[s])
                self.engine.set_rhs(self.model.need[s, c], float(read), infinity)
                columns.append(self._hold[s, c])
                lower.append(float(s in resident))
        self.engine.set_bounds(np.array(columns), np.array(lower), np.ones(len(lower)))
        return self.engine.solve(control, stage="bound", nodes=NODES, relax=relax)
