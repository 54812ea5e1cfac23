"""Greedy schedules: free the storage that is cheapest to compute again, until the rest fits."""

from __future__ import annotations

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from .polish import polish
from .squeeze import LOCALITIES, MoveRanking, squeeze


def greedy(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Propose one schedule for each ranking. Polish those that fit; the others show how small a peak can be.

    Source:
        No paper.
    From the paper:
        Nothing.
    Differences:
        None.
    """
    for locality in LOCALITIES:
        ranking = MoveRanking(locality)
        candidate = yield Proposal(
            squeeze(instance.problem, (), request.budget, request.effort, context.deadline, ranking=ranking)
        )
        if candidate.peak <= request.budget:
            yield from polish(instance.problem, candidate, request.budget, context.deadline)
        if context.deadline.stopped():
            return


GREEDY = Strategy("greedy", "at the worst moment, free the storage that is cheapest to compute again", greedy)
