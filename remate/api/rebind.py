"""The plans of a schedule for the model as it is now, without solving: renamed modules, another batch, another
torch."""

from __future__ import annotations

from msgspec.structs import replace

from remate_runtime.flat_step import Graph
from remate_runtime.format import Compiled, Schedule

from ..budget import parse_budget
from ..partition.hierarchy import Hierarchy
from ..profile.costing import COMPILED
from ..schedule_tools.analysis import analyse
from ..schedule_tools.carry import Carried, carry
from ..schedule_tools.figures import gap, refreshed
from .plan import schedule_of
from .replan import requested_of
from .unsolved import without_recomputes


def rebind(schedule: Schedule, step: Hierarchy, cost: str | None = None) -> Carried:
    """The plans of `schedule` for what `prepare_again` made of the live model, as far as its blocks are those of the
    schedule. Budget, name and notes are kept; figures are computed anew. The bound of the same step with the
    same costs stays; another step has none, for nothing is solved.
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
    old, new = analyse(schedule), analyse(bare)
    carried = carry(old, bare)
    found = carried.schedule
    if solve.lower_bound is not None and budget <= solve.budget and _unnamed(old.graph) == _unnamed(new.graph):
        found = replace(found, solve=replace(found.solve, lower_bound=solve.lower_bound))
        now = analyse(found)
        found = replace(found, solve=replace(found.solve, gap=gap(now)))
        if not carried.left_out and now.timeline.time == old.timeline.time:  # all of the plan: as it was solved
            found = replace(found, solve=replace(found.solve, stopped_by=solve.stopped_by))
    return replace(carried, schedule=refreshed(found).schedule)


def _unnamed(graph: Graph) -> Graph:
    """A step without the names of its operations and values, and without their places in the source."""
    return replace(
        graph,
        operations=tuple(replace(op, id="", source="") for op in graph.operations),
        values=tuple(replace(value, name="") for value in graph.values),
    )
