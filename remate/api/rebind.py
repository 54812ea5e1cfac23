"""The plans of a schedule for the model as it is now, without solving: renamed modules, another batch, another
torch."""

from __future__ import annotations

from msgspec.structs import replace

from remate_runtime.format import Compiled, Schedule

from ..budget import parse_budget
from ..partition.hierarchy import Hierarchy
from ..profile.costing import COMPILED
from ..schedule_tools.analysis import analyse
from ..schedule_tools.carry import Carried, carry
from ..schedule_tools.figures import refreshed
from .plan import schedule_of
from .replan import requested_of
from .unsolved import without_recomputes


def rebind(schedule: Schedule, step: Hierarchy, cost: str | None = None) -> Carried:
    """The plans of `schedule` for what `prepare_again` made of the live model, as far as its blocks are those of the
    schedule. Budget, name and notes are kept; figures are computed anew; no bound is proven, for nothing is solved.
    cost: what `prepare_again` was given in place of the file's.

    Raises ScheduleError for a schedule that is not legal, BudgetError, UnknownNameError.
    """
    settings, solve = requested_of(schedule), schedule.solve
    kept = without_recomputes(step.captured.graph, step.parts, solve.strategy, solve.solver)
    budget = parse_budget(settings.budget).resolve(kept.peak)
    costs = cost or solve.cost
    compiled = Compiled(budget) if costs == COMPILED else None
    if compiled and solve.compiled:  # what the interpreter may hold grows with it
        budget = max(budget, round(solve.budget / max(1, solve.compiled.budget) * budget))
    bare = schedule_of(step, kept, budget, costs, settings=solve.settings, compiled=compiled, name=schedule.name)
    bare = replace(bare, solve=replace(bare.solve, lower_bound=None, gap=None))
    carried = carry(analyse(schedule), bare)
    return replace(carried, schedule=refreshed(carried.schedule).schedule)
