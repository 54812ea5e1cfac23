"""A start where no formulation fits the budget: the smallest peak of the flat models, reduced greedily."""

from __future__ import annotations

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..local.squeeze import squeeze
from .flat import flat_model, lengths
from .highs import SOLVER
from .retention import smallest


def flat_squeeze(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Squeeze the smallest schedule of each flat model into the budget.

    Source:
        No paper.
    From the paper:
        Nothing.
    Differences:
        None.
    """
    for length in lengths(instance):
        candidate = yield from smallest(
            instance, request, context, instance.view(flat_model, length, request.solvers.milp)
        )
        if candidate is None or candidate.peak <= request.budget or context.deadline.stopped():
            return
        yield Proposal(
            squeeze(instance.problem, candidate.recomputes, request.budget, request.effort, context.deadline)
        )


FLAT_SQUEEZE = Strategy(
    "flat-squeeze",
    "the smallest schedule of the flat model, made smaller greedily",
    flat_squeeze,
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
