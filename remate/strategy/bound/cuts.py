"""Which cuts are asked what they prove, one by one and together (`cut_model`): of the backward, or of a step without
one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..base import Bound, Context, Request
from ..deadline import Deadline
from ..instance import StepInstance
from ..local.ledger import Ledger
from ..milp.highs import SOLVER
from ..problem import Problem
from .cut_model import CutModel, variables
from .floor import arguments, forced_bytes

EXACT = 2500  # variables of one cut up to which integrality is enforced
# Cuts taken together, as a share of those that the effort tries one by one; and whether their stretches overlap.
SHAPES = ((1 / 6, True), (1 / 3, True), (2 / 3, False))
LARGEST = 500  # variables of a model of several cuts, for each cut that the effort tries
# Of the work of the effort: a relaxation that takes more says that integers take too long. HiGHS cannot be ended while
# it works on the root of a search, and that alone takes tens to hundreds of times as long as the relaxation.
LIGHT = 0.005
HOPEFUL = 0.9  # of what is proven: a relaxation that says less is no reason to ask for integers


def one_cut(instance: StepInstance, request: Request, context: Context) -> int:
    """The best bound of a single cut. Cut short, it is the trivial one: every operation once."""
    single, forced = instance.view(cut_model, 1, False), forced_bytes(instance.problem)
    ask = _Requested(single, request, context.deadline, forced)
    scored = _scored(instance.problem, ask)
    if not scored:
        return instance.problem.baseline_time
    best, at = scored[0]
    if best < float("inf") and single.variables <= EXACT:  # else the relaxation says nearly as much
        best = max(best, ask.proven([at], relax=False))
    return single.nanoseconds(best)


def several_cuts(instance: StepInstance, request: Request, context: Context) -> int:
    """The best bound of several cuts at once: what must run again before each of several peaks of the backward. A step
    too large for it gets the trivial bound. Stops when no schedule can be much better than the best one known."""
    problem, single = instance.problem, instance.view(cut_model, 1, False)
    if context.best is None or not single.storages:
        return problem.baseline_time
    forced, wanted = forced_bytes(problem), context.best.time - context.slack
    scored = _scored(problem, _Requested(single, request, context.deadline, forced))
    extra = scored[0][0] if scored else 0.0
    for share, overlapping in SHAPES:
        count, besides = max(2, round(share * request.effort.cuts)), [k for _, k in scored[:1]]
        if problem.backward:
            places = _spread(problem, forced, count, besides)
        else:
            places = sorted({*_fullest(problem, request.budget, count), *besides})
        size = variables(problem, len(places), overlapping)
        if single.nanoseconds(extra) >= wanted or context.deadline.stopped():
            break
        if size <= LARGEST * request.effort.cuts:
            together = instance.view(cut_model, len(places), overlapping)
            ask = _Requested(together, request, context.deadline, forced)
            relaxed, work = ask.relaxed(places)
            extra = max(extra, relaxed)
            if relaxed >= HOPEFUL * extra and work <= LIGHT * request.effort.work:
                extra = max(extra, ask.proven(places, relax=False))
    return single.nanoseconds(extra)


class _Requested:
    """A model asked under one budget."""

    def __init__(self, model: CutModel, request: Request, deadline: Deadline, forced: np.ndarray) -> None:
        self.model, self.request, self.deadline, self.forced = model, request, deadline, forced

    def proven(self, places: list[int], *, relax: bool) -> float:
        """Extra time in % of the step; infinite where nothing fits."""
        return self._answer(places, relax)[0]

    def relaxed(self, places: list[int]) -> tuple[float, float]:
        """The same by the linear relaxation, and the work that it took."""
        return self._answer(places, True)

    def _answer(self, places: list[int], relax: bool) -> tuple[float, float]:
        request = self.request
        result = self.model.solve(self.deadline, request.budget, request.effort, places, self.forced, relax=relax)
        return max(0.0, result.bound) if result.status != "failed" else 0.0, result.work


def _scored(problem: Problem, ask: _Requested) -> list[tuple[float, int]]:
    """What the relaxations of single cuts prove, with their places, the best first; nothing where backward reads
    nothing that forward makes."""
    if not ask.model.storages:
        return []
    most = ask.request.effort.cuts
    places = _records(problem, ask.forced, most) if problem.backward else _fullest(problem, ask.request.budget, most)
    return sorted(((ask.proven([k], relax=True), k) for k in places), key=lambda score: (-score[0], -score[1]))


def _level(problem: Problem, forced: np.ndarray, i: int) -> int:
    """Bytes that are live while operation i runs, whatever the schedule."""
    return int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i))


def _spread(problem: Problem, forced: np.ndarray, count: int, besides: list[int]) -> list[int]:
    """In each of `count` equal stretches of the backward, the operation where most must be live; in order."""
    backward = problem.backward
    ends = [round(n * len(backward) / count) for n in range(count + 1)]
    parts = [backward[a:b] for a, b in pairwise(ends) if a < b]
    highest = [max(part, key=lambda i: _level(problem, forced, i)) for part in parts]
    return sorted({*highest, *besides})


def _fullest(problem: Problem, budget: int, count: int) -> list[int]:
    """Of a step without a backward: in each of at most `count` equal stretches of what exceeds the budget if nothing
    runs again, the operation that exceeds it most."""
    ledger = Ledger(problem, ())
    over = [(int(live), i) for live, i in zip(ledger.live, ledger.order, strict=True) if i >= 0 and live > budget]
    ends = [round(n * len(over) / count) for n in range(count + 1)]
    return [max(over[a:b])[1] for a, b in pairwise(ends) if a < b]


def _records(problem: Problem, forced: np.ndarray, most: int) -> list[int]:
    """Backward operations where more must be live than at any before: elsewhere an earlier cut says as much."""
    records: list[int] = []
    highest = -1
    for i in problem.backward:
        level = _level(problem, forced, i)
        if level > highest:
            records.append(i)
            highest = level
    if len(records) <= most:
        return records
    return [records[round(n * (len(records) - 1) / (most - 1))] for n in range(most)]


def cut_model(instance: StepInstance, count: int, overlapping: bool) -> CutModel:
    """The model of `count` cuts of a step."""
    return CutModel(instance.problem, count, instance.baseline.peak, overlapping=overlapping)


CUT = Bound(
    "cut",
    "integer program: what must run again after one operation",
    one_cut,
    solver=SOLVER,
)
CUTS = Bound(
    "cuts",
    "the same after each of several operations, and between any two of them",
    several_cuts,
    solver=SOLVER,
)
