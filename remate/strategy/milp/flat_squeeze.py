"""Where no formulation fits the budget: from the smallest peak that the flat models reach, on greedily."""

from __future__ import annotations

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..local.squeeze import squeeze
from .flat import flat_model, lengths
from .highs import SOLVER
from .retention import smallest


def flat_squeeze(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """The smallest schedule of each flat model, squeezed into the budget."""
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
