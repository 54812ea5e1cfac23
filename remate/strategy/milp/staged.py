"""The staged strategy: a forward operation may run again in several stages, and its results may be held between them.

It is needed where boundaries are large, cheap to compute again, or too many to keep: convolutional nets, U-Nets, low
budgets. The model grows with the number of stages above its own in which an operation may be recomputed, so it suits
hundreds of operations.
"""

from __future__ import annotations

from ...errors import NotApplicableError
from ..base import Context, Proposals, Request, Strategy
from ..instance import StepInstance
from ..problem import Problem
from ..segments import segments
from .flat import allowed_stages
from .formulation import Formulation
from .highs import SOLVER
from .retention import formulation, retention, smallest
from .windows import RecomputeWindows, recompute_windows

# Operations in a segment, and stages above its own in which an operation may be recomputed.
SHAPES = ((8, 3), (5, 6))
LARGEST = 900  # variables of a model that still solves in seconds


def staged_windows(problem: Problem, length: int, above: int) -> RecomputeWindows:
    """Return windows in which operations may be recomputed up to `above` stages before the first that needs them."""
    split = segments(problem, length)
    return recompute_windows(problem, split.stage, allowed_stages(problem, split, above))


def staged(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Solve models with short segments first, as long as they are small enough.

    Source:
        P. Jain, A. Jain, A. Nrusimha, A. Gholami, P. Abbeel, K. Keutzer, I. Stoica, J. E. Gonzalez, "Checkmate:
        Breaking the memory wall with optimal tensor rematerialization", MLSys 2020.
    From the paper:
        Stages, an operation that runs again in several of them, and results that are held between stages.
    Differences:
        A stage is a segment of the backward with several operations, and runs are limited to a few stages, because the
        paper's model grows with the square of the step. Steps whose smallest model has over 900 variables are refused.

    Raises:
        NotApplicableError: All models of the step are too large.
    """
    sizes = [_variables(instance.view(_windows, length, above)) for length, above in SHAPES]
    if min(sizes) > LARGEST:
        raise NotApplicableError(
            f"the strategy 'staged' solves models of up to {LARGEST:,} variables, and its smallest model of this step "
            f"has about {min(sizes):,}\n  hint: use another strategy (flat), or auto"
        )
    for (length, above), size in zip(SHAPES, sizes, strict=True):
        if size <= LARGEST and not context.deadline.stopped():
            model = instance.view(_model, length, above, request.solvers.milp)
            yield from retention(instance, request, context, model, f"staged {length}/{above}")
            if "staged" not in context.fitted:
                yield from smallest(instance, request, context, model)


def _variables(windows: RecomputeWindows) -> int:
    return len(windows.position) + len(windows.need)


def _windows(instance: StepInstance, length: int, above: int) -> RecomputeWindows:
    return staged_windows(instance.problem, length, above)


def _model(instance: StepInstance, length: int, above: int, solver: str) -> Formulation:
    return formulation(instance, instance.view(_windows, length, above), solver)


STAGED = Strategy(
    "staged",
    "integer program: an operation may run again in several stages of the backward",
    staged,
    reference="P. Jain et al., Checkmate, MLSys 2020 (with stages of operations)",
    solver=SOLVER,
    options=frozenset({"milp"}),
    needs=frozenset({"backward"}),
)
