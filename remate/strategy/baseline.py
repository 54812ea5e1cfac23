"""The schedule without recomputation. Every search begins with it, so this strategy adds nothing."""

from __future__ import annotations

from .base import BASELINE, Context, Proposal, Proposals, Request, Strategy
from .instance import StepInstance


def baseline(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Propose the schedule without recomputation.

    Source:
        No paper.
    From the paper:
        Nothing.
    Differences:
        None.
    """
    yield Proposal(())


BASELINE_STRATEGY = Strategy(BASELINE, "nothing runs again", baseline)
