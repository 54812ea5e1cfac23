"""What planning does with a budget that no schedule meets: it raises the error, or plans the smallest peak."""

from __future__ import annotations

import warnings
from typing import get_args

from remate_runtime.format import Schedule
from remate_runtime.support.callers import frames_to_caller
from remate_runtime.support.quantities import size

from ..budget import parse_budget
from ..errors import InfeasibleError, UnknownNameError
from .options import OnInfeasible
from .settings import pages

SMALLEST = "smallest"
OVER_BUDGET = "OVER BUDGET: "  # start of the warning


def plans_smallest(on_infeasible: str) -> bool:
    """Whether the choice is to plan the smallest peak. Raises UnknownNameError for an unknown choice."""
    known = get_args(OnInfeasible)
    if on_infeasible not in known:
        raise UnknownNameError(f"on_infeasible cannot be {on_infeasible!r}\n  hint: one of {', '.join(known)}")
    return on_infeasible == SMALLEST


def warn_of_smallest(error: InfeasibleError) -> None:
    """Warn that the smallest peak is planned because no schedule meets the budget."""
    what, figures, hint = str(error).split("\n", 2)
    warnings.warn(
        f"{OVER_BUDGET}{what}\n{figures}\n  planned for the smallest peak found instead, {size(error.smallest)}, which "
        f"can be slow; on_infeasible='error' stops instead\n{hint}",
        UserWarning,
        stacklevel=frames_to_caller(),
    )


def is_over_budget(schedule: Schedule) -> bool:
    """Whether a schedule was planned for the smallest peak because no schedule met the requested budget.

    Such a schedule has exactly its budget in bytes as its peak. An edited request usually has not.
    """
    solve = schedule.solve
    if solve.settings is None or solve.compiled is not None or pages(solve.settings):
        return False
    requested = parse_budget(solve.settings.budget).resolve(solve.baseline_peak)
    return solve.peak == solve.budget > requested
