"""Selective checkpointing: blocks run again but for the operations that take the most time for the bytes they leave."""

from __future__ import annotations

from remate_runtime.flat_step import FlatRecompute

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from .checkpoint import repeated_segments, segment_recomputes

FIRST = 8  # operations that are saved at first; then twice as many, until they do not fit


def selective(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Checkpoint the repeated blocks, and save the results that cost the most time for their bytes, as many as fit.

    Source:
        `torch.utils.checkpoint.create_selective_checkpoint_contexts`, and selective checkpointing in torchtitan.
    From the paper:
        Each repeated block runs again, but for operations that a policy saves.
    Differences:
        The policy there is a list of operators (products and attention). Here it is an order by time for each byte, of
            which as many operations are saved as fit, because the budget is given and not the policy.
    """
    problem, segments = instance.problem, repeated_segments(instance.blocks)
    everything = yield Proposal(segment_recomputes(problem, segments))
    if everything.peak > request.budget:
        return
    ranked = _ranked(problem, everything.recomputes)
    low, high, width = 0, len(ranked) + 1, FIRST  # invariant: `low` operations fit, `high` do not
    while low + 1 < high and not context.deadline.stopped():
        middle = min(low + width, (low + high) // 2) if high > len(ranked) else (low + high) // 2
        saved = frozenset(s for f in ranked[:middle] for s in problem.writes[f])
        candidate = yield Proposal(segment_recomputes(problem, segments, saved))
        if candidate.peak <= request.budget:
            low, width = middle, width * 2
        else:
            high = middle


def _ranked(problem: Problem, recomputes: tuple[FlatRecompute, ...]) -> list[int]:
    """Return the operations that run again, those with the most time for each byte first, and of equal ones the last,
    whose results live the shortest."""
    again = {recompute.op for recompute in recomputes}
    nbytes = {f: max(1, sum(problem.size[s] for s in problem.writes[f])) for f in again}
    return sorted(again, key=lambda f: (-problem.time[f] / nbytes[f], -f))


SELECTIVE = Strategy(
    "selective",
    "repeated blocks run again but for the operations that take the most time for their bytes, as many as fit",
    selective,
    reference="torch.utils.checkpoint, create_selective_checkpoint_contexts",
    needs=frozenset({"backward", "hierarchy"}),
)
