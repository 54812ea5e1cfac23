"""A search over states under the budget; where it finds nothing, how far down it gets."""

from __future__ import annotations

from collections.abc import Callable

from ..base import Context, Proposals, Request
from ..instance import StepInstance

HALVINGS = 12  # at most; a step of many operations gets fewer
SHARE = 4  # of them, times the states of one search over the operations of the step


def downward(
    instance: StepInstance, request: Request, context: Context, search: Callable[[int], Proposals[int | None]]
) -> Proposals[None]:
    """Let `search` look for schedules under the budget. It reports the least peak that it reached, or None.

    Without success it looks under greater budgets, halfway between the greatest that failed and the least peak that was
    reached: the smallest peak of a search is one that an earlier search reached.
    """
    failed = max(request.budget, instance.floor)
    if (yield from search(failed)) is not None:
        return
    reached = instance.baseline.peak
    most = max(2, min(HALVINGS, SHARE * request.effort.states // len(instance.graph.operations)))
    for _ in range(most):
        middle = (failed + reached) // 2
        if middle in (failed, reached) or context.deadline.stopped():
            return
        peak = yield from search(middle)
        failed, reached = (middle, reached) if peak is None else (failed, peak)
