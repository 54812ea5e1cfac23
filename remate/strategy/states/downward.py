"""A search over states under the budget, and under larger budgets if it fails."""

from __future__ import annotations

from collections.abc import Callable

from ..base import Context, Proposals, Request
from ..instance import StepInstance

HALVINGS = 12  # most halvings; a step of many operations gets fewer
SHARE = 4  # halvings per (states of one search / operations of the step)


def downward(
    instance: StepInstance, request: Request, context: Context, search: Callable[[int], Proposals[int | None]]
) -> Proposals[None]:
    """Search under the budget with `search`, which returns the least peak that it reached, or None.

    If it fails, search under larger budgets, halfway between the largest that failed, or that the context's floor
    excludes, and the least peak that was reached. So the smallest peak of a search is one that an earlier search
    reached.
    """
    failed = max(request.budget, instance.floor)
    if (yield from search(failed)) is not None:
        return
    reached = instance.baseline.peak
    most = max(2, min(HALVINGS, SHARE * request.effort.states // len(instance.graph.operations)))
    for _ in range(most):
        failed = max(failed, context.floor - 1)
        middle = (failed + reached) // 2
        if failed + 1 >= reached or context.deadline.stopped():
            return
        peak = yield from search(middle)
        failed, reached = (middle, reached) if peak is None else (failed, peak)
