"""A strategy from a retention model: solve it under the budget, place its recomputations, and correct by the
simulator."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ..base import Candidate, Context, Proposal, Proposals, Request
from ..feedback import Answer, FeedbackResult, feedback
from ..instance import StepInstance
from .formulation import Formulation
from .place import place
from .refinement import refined
from .solver_model import HIGHS
from .warm_start import warm_start
from .windows import Key, RecomputeWindows

TIGHT = 0.0005  # gap of one solve, smaller than that of the whole search

Chosen = Mapping[Key, bool]


def formulation(instance: StepInstance, windows: RecomputeWindows, solver: str = HIGHS) -> Formulation:
    """Return the retention model of a step over these windows. solver: name of the solver of integer programs."""
    return Formulation(instance.problem, windows, instance.baseline.peak, solver)


def retention(
    instance: StepInstance, request: Request, context: Context, model: Formulation, stage: str
) -> Proposals[None]:
    """Propose the model's schedules, and, if these are the best so far, those of a neighbourhood with exact memory."""
    known = None if context.best is None else warm_start(instance.problem, model.windows, context.best.recomputes)
    outcome = yield from corrected(request, context, model, known, stage)
    if outcome.about is not None and outcome.best is context.best:
        windows = refined(instance.problem, model.windows, outcome.about)
        around = formulation(instance, windows, request.solvers.milp)
        yield from corrected(request, context, around, outcome.about, stage)


def corrected(
    request: Request, context: Context, model: Formulation, start: Chosen | None, stage: str
) -> Proposals[FeedbackResult[Chosen]]:
    """Propose the model's schedules for this budget, and for the corrected budgets. All solves share the work of the
    effort.

    Args:
        request: The budget and the effort.
        context: The deadline, and the time that is good enough.
        model: The model.
        start: A first solution.
        stage: Text for progress lines.
    """
    latest, left = start, request.effort.work

    def ask(budget: float) -> Answer[Chosen] | None:
        nonlocal latest, left
        effort = replace(request.effort, work=left)
        result = model.solve(
            context.deadline, budget, effort, gap=TIGHT, enough=context.enough, start=latest, stage=stage
        )
        left = max(0.0, left - result.work)
        if result.x is None:
            return None
        latest = model.chosen(result)
        return Answer(tuple(place(model.problem, model.windows, latest)), model.peak(result), latest)

    return (yield from feedback(request, context, ask))


def smallest(
    instance: StepInstance, request: Request, context: Context, model: Formulation
) -> Proposals[Candidate | None]:
    """Propose the smallest peak of the model, which is cached because it does not depend on the budget."""
    key = ("smallest", model, request.effort)
    if key not in instance.kept:
        result = model.smallest(context.deadline, request.effort, tolerance=0.005)
        if result.x is None:
            return None
        recomputes = tuple(place(model.problem, model.windows, model.chosen(result)))
        if context.deadline.stopped():  # a result that the deadline cut short is not cached
            return (yield Proposal(recomputes))
        instance.kept[key] = recomputes
    return (yield Proposal(instance.kept[key]))
