"""The flat strategy: every forward storage is kept from forward to backward, or its operation runs again in backward.

Values that cross the boundary of a segment are kept, so each recomputation's window is inside the backward of its
segment. This costs nearly nothing where boundaries are small (transformers), and much where they are large and cheap to
recompute (convolutional nets).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from ..segments import Segments, segments
from .formulation import Formulation
from .highs import SOLVER
from .retention import formulation, retention, smallest
from .solver_model import HIGHS
from .windows import RecomputeWindows, recompute_windows

LENGTHS = (24, 12, 40)  # operations in a segment: about one attention or feed-forward layer with its norms
# One segment of everything, for parts with several calls: every call would hold the values that cross boundaries.
WHOLE = 1 << 20


def flat(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Solve models with segments of several lengths.

    Source:
        No paper; the formulation is remate's.
    From the paper:
        Nothing.
    Differences:
        Compared with Checkmate, an operation runs again at most once per stage of a whole segment, and values that
        cross segments are kept. So the model is linear in the size of the step.
    """
    for length in lengths(instance):
        if not context.deadline.stopped():
            model = instance.view(flat_model, length, request.solvers.milp)
            yield from retention(instance, request, context, model, f"flat {length}")
    if "flat" not in context.fitted and not context.deadline.stopped():
        for length in lengths(instance):
            yield from smallest(instance, request, context, instance.view(flat_model, length, request.solvers.milp))


def lengths(instance: StepInstance) -> tuple[int, ...]:
    """Return the lengths of segments that are tried, in this order."""
    return LENGTHS if instance.graph.calls == 1 else (WHOLE, *LENGTHS)


def flat_model(instance: StepInstance, length: int, solver: str = HIGHS) -> Formulation:
    """Return the model with segments of about `length` operations. solver: name of the solver of integer programs."""
    return formulation(instance, flat_windows(instance.problem, length), solver)


def flat_windows(problem: Problem, length: int) -> RecomputeWindows:
    """Return the windows of the flat model."""
    split = segments(problem, length)
    return recompute_windows(problem, split.stage, _allowed_stages(problem, split))


def _allowed_stages(problem: Problem, split: Segments) -> Mapping[int, set[int]]:
    """Return the stages in which each forward operation may be recomputed.

    These are the stages in which backward, or an operation that is recomputed there, reads its results. Operations that
    write only values at the boundaries of segments are never recomputed.
    """
    allowed: dict[int, set[int]] = {}
    kept = problem.pinned | split.boundary
    for f in reversed(problem.forward):
        outputs = [s for s in problem.writes[f] if s not in kept and f not in problem.once]
        stages = {
            k
            for s in outputs
            for i in problem.readers[s]
            for k in ((split.stage[i - problem.backward_start],) if i >= problem.backward_start else allowed.get(i, ()))
        }
        if stages:
            allowed[f] = stages
    return allowed


FLAT = Strategy(
    "flat",
    "integer program: keep a value from forward to backward, or compute it again in backward",
    flat,
    solver=SOLVER,
    options=frozenset({"milp"}),
    needs=frozenset({"backward"}),
)
