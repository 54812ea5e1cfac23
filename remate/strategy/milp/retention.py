"""A strategy out of a retention model: solve it under the budget, place its recomputations, hear the simulator,
correct."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ..base import Candidate, Context, Proposal, Proposals, Request
from ..feedback import Answer, Heard, feedback
from ..instance import StepInstance
from .formulation import Formulation
from .place import place
from .refinement import refined
from .solver_model import HIGHS
from .warm_start import warm_start
from .windows import Key, RecomputeWindows

TIGHT = 0.0005  # gap that one solve aims at: finer than what is asked of the whole

Chosen = Mapping[Key, bool]


def formulation(instance: StepInstance, windows: RecomputeWindows, solver: str = HIGHS) -> Formulation:
    """The retention model of a step over these windows. solver: the name of what solves it."""
    return Formulation(instance.problem, windows, instance.baseline.peak, solver)


def retention(
    instance: StepInstance, request: Request, context: Context, model: Formulation, stage: str
) -> Proposals[None]:
    """What the model proposes; where that is the best so far, also what is found in its neighbourhood, where memory is
    counted exactly."""
    known = None if context.best is None else warm_start(instance.problem, model.windows, context.best.recomputes)
    heard = yield from corrected(request, context, model, known, stage)
    if heard.about is not None and heard.best is context.best:
        windows = refined(instance.problem, model.windows, heard.about)
        around = formulation(instance, windows, request.solvers.milp)
        yield from corrected(request, context, around, heard.about, stage)


def corrected(
    request: Request, context: Context, model: Formulation, start: Chosen | None, stage: str
) -> Proposals[Heard[Chosen]]:
    """What the model proposes for this budget, and for those that the simulator's answers ask for. start: a first
    solution. All solves together take the work of the effort: the first brings most."""
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
    """The smallest peak that the model finds, solved for once. It does not depend on the budget."""
    key = ("smallest", model, request.effort)
    if key not in instance.kept:
        result = model.smallest(context.deadline, request.effort, tolerance=0.005)
        if result.x is None:
            return None
        recomputes = tuple(place(model.problem, model.windows, model.chosen(result)))
        if context.deadline.stopped():  # what the clock has cut short is not kept
            return (yield Proposal(recomputes))
        instance.kept[key] = recomputes
    return (yield Proposal(instance.kept[key]))
