"""Bounds by cuts (`cut_model`): which cuts are solved, one by one and together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from ..base import Bound, Context, Request
from ..deadline import Deadline
from ..instance import StepInstance
from ..local.ledger import Ledger
from ..milp.highs import SOLVER
from ..problem import Problem
from .cut_model import CutModel, StretchKind, variables
from .cut_step import NEGLIGIBLE, CutStep, cut_step
from .floor import arguments, forced_bytes

EXACT = 2500  # variables of one cut up to which integrality is enforced
# Cuts of one model, as a share of the cuts that the effort tries one by one; and which stretches it has.
SHAPES: tuple[tuple[float, StretchKind], ...] = ((1 / 6, "overlapping"), (1 / 3, "overlapping"), (2 / 3, "long"))
LARGEST = 500  # variables of a model of several cuts, for each cut that the effort tries
# Share of the effort's work. If the relaxation takes more, integers would take too long: HiGHS cannot be stopped at the
# root of a search, which alone takes tens to hundreds of times as long as the relaxation.
LIGHT = 0.005
RELAXED = 4.0  # share of the effort's work that a relaxation of several cuts may take: unfinished, it proves nothing
MORE = 1e-3  # % of the step's time: if the relaxation of more cuts proves no more than this, the search ends
HOPEFUL = 0.9  # share of the proven bound that a relaxation must reach before integers are tried


def one_cut(instance: StepInstance, request: Request, context: Context) -> int:
    """Return the best bound of a single cut, or the trivial bound if the deadline ends it."""
    single, forced = instance.view(cut_model, 1, "long"), forced_bytes(instance.problem)
    budgeted = _BudgetedModel(single, request, context.deadline, forced)
    scored = _scored(instance.problem, budgeted)
    if not scored:
        return instance.problem.baseline_time
    best, at = scored[0]
    if best < float("inf") and single.variables <= EXACT:  # otherwise the relaxation is nearly as strong
        best = max(best, budgeted.proven([at], relax=False))
    return single.nanoseconds(best)


def several_cuts(instance: StepInstance, request: Request, context: Context) -> int:
    """Return the best bound of several cuts at once: what must run again before each of several peaks of a step without
    a backward. (For other steps, `growing_cuts` proves more.)

    The search stops when no schedule can be much better than the best known one.
    """
    problem, single = instance.problem, instance.view(cut_model, 1, "long")
    if context.best is None or not single.storages:
        return problem.baseline_time
    forced, wanted = forced_bytes(problem), context.best.time - context.slack
    scored = _scored(problem, _BudgetedModel(single, request, context.deadline, forced))
    extra = scored[0][0] if scored else 0.0
    before, took = 0.0, 0.0  # relaxation of the previous shape, and its visits
    for share, kind in SHAPES:
        count = max(2, round(share * request.effort.cuts))
        places = sorted({*_fullest(problem, request.budget, count), *(k for _, k in scored[:1])})
        size = variables(instance.view(step_of), len(places), kind)
        left = context.deadline.left()
        if single.nanoseconds(extra) >= wanted or context.deadline.stopped() or left <= took:
            break
        if size <= LARGEST * request.effort.cuts:
            together = instance.view(cut_model, len(places), kind)
            budgeted = _BudgetedModel(together, request, context.deadline, forced)
            relaxed, work = budgeted.relaxed(places)
            extra = max(extra, relaxed)
            if relaxed >= HOPEFUL * extra and work <= LIGHT * request.effort.work:
                extra = max(extra, budgeted.proven(places, relax=False))
            if relaxed <= before + MORE:
                break
            before, took = relaxed, left - context.deadline.left()
    return single.nanoseconds(extra)


class _BudgetedModel:
    """A model under one budget."""

    def __init__(self, model: CutModel, request: Request, deadline: Deadline, forced: np.ndarray) -> None:
        self.model, self.request, self.deadline, self.forced = model, request, deadline, forced

    def proven(self, places: list[int], *, relax: bool) -> float:
        """Return additional time in % of the step; infinite if nothing fits."""
        return self._answer(places, relax)[0]

    def relaxed(self, places: list[int]) -> tuple[float, float]:
        """Return the additional time of the linear relaxation, and the work that it took."""
        return self._answer(places, True)

    def _answer(self, places: list[int], relax: bool) -> tuple[float, float]:
        request, effort = self.request, self.request.effort
        if relax and len(places) > 1:
            effort = replace(effort, work=RELAXED * effort.work)
        result = self.model.solve(self.deadline, request.budget, effort, places, self.forced, relax=relax)
        return max(0.0, result.bound) if result.status != "failed" else 0.0, result.work


def _scored(problem: Problem, budgeted: _BudgetedModel) -> list[tuple[float, int]]:
    """Return the bounds of relaxations of single cuts, with their places, the best first.

    The list is empty if backward reads nothing that forward computes.
    """
    if not budgeted.model.storages:
        return []
    most = budgeted.request.effort.cuts
    places = (
        records(problem, budgeted.forced, most)
        if problem.backward
        else _fullest(problem, budgeted.request.budget, most)
    )
    return sorted(((budgeted.proven([k], relax=True), k) for k in places), key=lambda score: (-score[0], -score[1]))


def level_at(problem: Problem, forced: np.ndarray, i: int) -> int:
    """Return bytes that are live while operation i runs, in any schedule."""
    return int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i))


def _fullest(problem: Problem, budget: int, count: int) -> list[int]:
    """Return operations of a step without a backward that exceed the budget most.

    The operations that exceed the budget without recomputation are divided into at most `count` equal stretches. Each
    stretch gives one operation.
    """
    ledger = Ledger(problem, ())
    over = [(int(live), i) for live, i in zip(ledger.live, ledger.order, strict=True) if i >= 0 and live > budget]
    ends = [round(n * len(over) / count) for n in range(count + 1)]
    return [max(over[a:b])[1] for a, b in pairwise(ends) if a < b]


def records(problem: Problem, forced: np.ndarray, most: int) -> list[int]:
    """Return backward operations where more must be live than at any earlier one.

    At other operations, an earlier cut proves as much.

    Args:
        problem: The step.
        forced: Bytes that are live in any schedule, by operation.
        most: Most operations to return.
    """
    rising: list[int] = []
    highest = -1
    for i in problem.backward:
        level = level_at(problem, forced, i)
        if level > highest:
            rising.append(i)
            highest = level
    if len(rising) <= most:
        return rising
    if most == 1:
        return rising[-1:]
    return [rising[round(n * (len(rising) - 1) / (most - 1))] for n in range(most)]


def cut_model(instance: StepInstance, count: int, kind: StretchKind) -> CutModel:
    """Return the model of `count` cuts of a step."""
    return CutModel(instance.view(step_of), count, instance.baseline.peak, kind)


def step_of(instance: StepInstance) -> CutStep:
    """Return the step as models of cuts see it."""
    return cut_step(instance.problem, int(NEGLIGIBLE * instance.baseline.peak))


CUT = Bound(
    "cut",
    "integer program: operations that must run again after one cut",
    one_cut,
    solver=SOLVER,
)
CUTS = Bound(
    "cuts",
    "integer program: the same after each of several cuts of a step without a backward, and between any two of them",
    several_cuts,
    solver=SOLVER,
    needs=frozenset({"forward"}),
)
