"""The least peak that any schedule of a graph can have, proven: at every operation, what must be live there."""

from __future__ import annotations

from ..problem import Problem
from .cuts import arguments, forced_bytes


def proven_floor(problem: Problem) -> int:
    """Bytes that some operation needs at once in every schedule: its arguments, outputs and workspace, outputs of the
    model and gradients already made, and backward values still to be read. Same assumptions as `bound`."""
    forced = forced_bytes(problem)
    return max(
        (
            int(forced[i]) + sum(problem.size[s] for s in arguments(problem, i))
            for i, real in enumerate(problem.real)
            if real
        ),
        default=0,
    )
