"""Selective checkpointing: blocks run again but for the operations that take the most time for the bytes they leave."""

from __future__ import annotations

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .checkpoint import Segment, repeated_segments, segment_recomputes

FIRST = 8  # the first count of operations whose results are saved; then twice as many, until the peak passes the budget


def selective(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Checkpoint the repeated blocks, and save the results that cost the most time for their bytes, as many as fit.

    Source:
        `torch.utils.checkpoint.create_selective_checkpoint_contexts`, and selective checkpointing in torchtitan.
    From the source:
        Each repeated block runs again, but for operations that a policy saves.
    Differences:
        The policy there is a list of operators (products and attention). Here it is an order, by time for each byte,
            and the budget says how many are saved.
    """
    problem, segments = instance.problem, repeated_segments(instance.blocks)
    ranked = _ranked(problem, segments)
    low, high, width = 0, len(ranked) + 1, FIRST  # `low` fits or is 0; `high` does not fit
    while low + 1 < high and not context.deadline.stopped():
        middle = min(low + width, (low + high) // 2) if high > len(ranked) else (low + high) // 2
        kept = frozenset(s for f in ranked[:middle] for s in problem.writes[f])
        candidate = yield Proposal(segment_recomputes(problem, segments, kept))
        if candidate.peak <= request.budget:
            low, width = middle, width * 2
        else:
            high = middle


def _ranked(problem: Problem, segments: list[Segment]) -> list[int]:
    """Return the operations that checkpointing runs again, those with the most time for each byte first."""
    runs = sorted({run.op for run in segment_recomputes(problem, segments)})
    nbytes = {f: max(1, sum(problem.size[s] for s in problem.writes[f])) for f in runs}
    return sorted(runs, key=lambda f: (-problem.time[f] / nbytes[f], -f))


SELECTIVE = Strategy(
    "selective",
    "repeated blocks run again but for the operations that take the most time for their bytes, as many as fit",
    selective,
    reference="torch.utils.checkpoint, create_selective_checkpoint_contexts",
    needs=frozenset({"backward", "hierarchy"}),
)
