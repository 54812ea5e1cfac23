"""The flat strategy: every forward storage is kept from forward to backward, or its operation runs again there.

Values that cross the boundary of a segment are kept, so that each recomputation's window stays inside the backward of
its segment: nearly free where boundaries are small (transformers), costly where they are large and cheap to recompute
(convolutional nets, see `staged`).
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
WHOLE = (
    1 << 20
)  # a segment of all: of a part that is called several times, what crosses a boundary is held by all calls


def flat(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Models with segments of several lengths."""
    for length in lengths(instance):
        if not context.deadline.stopped():
            model = instance.view(flat_model, length, request.solvers.milp)
            yield from retention(instance, request, context, model, f"flat {length}")
    if "flat" not in context.fitted and not context.deadline.stopped():
        for length in lengths(instance):
            yield from smallest(instance, request, context, instance.view(flat_model, length, request.solvers.milp))


def lengths(instance: StepInstance) -> tuple[int, ...]:
    """Lengths of segments that are tried, in this order."""
    return LENGTHS if instance.graph.calls == 1 else (WHOLE, *LENGTHS)


def flat_model(instance: StepInstance, length: int, solver: str = HIGHS) -> Formulation:
    """The model with segments of about `length` operations. solver: the name of what solves it."""
    return formulation(instance, flat_windows(instance.problem, length), solver)


def flat_windows(problem: Problem, length: int) -> RecomputeWindows:
    """Windows of the flat model."""
    split = segments(problem, length)
    return recompute_windows(problem, split.stage, allowed_stages(problem, split, 0, split.boundary))


def allowed_stages(
    problem: Problem, split: Segments, above: int, kept: frozenset[int] = frozenset()
) -> Mapping[int, set[int]]:
    """Stages in which each forward operation may be recomputed: where backward, or an operation that is recomputed
    there, reads its results, and up to `above` stages earlier. Operations that write only `kept` storages, or may run
    but once, never recompute."""
    natural: dict[int, set[int]] = {}
    for f in reversed(problem.forward):
        outputs = [s for s in problem.writes[f] if s not in kept and s not in problem.pinned and f not in problem.once]
        stages = {
            k
            for s in outputs
            for i in problem.readers[s]
            for k in ((split.stage[i - problem.backward_start],) if i >= problem.backward_start else natural.get(i, ()))
        }
        if above == 0:
            if stages:
                natural[f] = stages
            continue
        own = len(split.ends) - 1 - split.of[f]
        if stages:
            natural[f] = {k for k in stages if k >= own - above}
    return natural


FLAT = Strategy(
    "flat",
    "integer program: keep a value from forward to backward, or make it again there",
    flat,
    solver=SOLVER,
    options=frozenset({"milp"}),
    needs=frozenset({"backward"}),
)
