"""The staged strategy: a forward operation may run again in several stages, and what it makes be held between them.

Needed where boundaries are large, cheap to make again, or too many to keep: convolutional nets, U-Nets, low budgets.
The model grows with the number of stages above its own in which an operation may be recomputed, so it suits hundreds of
operations.
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

# Operations in a segment, with the stages above its own where an operation may be recomputed.
SHAPES = ((8, 3), (5, 6))
LARGEST = 900  # variables of a model that still solves in seconds


def staged_windows(problem: Problem, length: int, above: int) -> RecomputeWindows:
    """Windows in which every operation may be recomputed up to `above` stages before the first that needs it."""
    split = segments(problem, length)
    return recompute_windows(problem, split.stage, allowed_stages(problem, split, above))


def staged(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Models with short segments first, as long as they stay solvable. Raises NotApplicableError where none is."""
    sizes = [_variables(instance.view(_windows, length, above)) for length, above in SHAPES]
    if min(sizes) > LARGEST:
        raise NotApplicableError(
            f"staged: its smallest model of this step has about {min(sizes):,} variables, and it solves those of up to "
            f"{LARGEST:,}\n  hint: ask for another strategy (flat), or for auto"
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
