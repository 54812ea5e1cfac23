"""Transfers the plans of a schedule to the current model, without solving."""

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
from .over_budget import is_over_budget
from .replan import requested_of
from .unsolved import without_recomputes
from .writing import schedule_of


def rebind(schedule: Schedule, step: Hierarchy, cost: str | None = None) -> Carried:
    """Transfer the plans of a schedule to equal blocks of the current model.

    Budget, name and notes are kept, and figures are computed again. The bound is kept if step and costs are the same.

    Args:
        schedule: The schedule.
        step: The step of the current model, from `prepare_again`.
        cost: The cost model given to `prepare_again`, if not that of the file.

    Raises:
        ScheduleError: The schedule is not valid.
        BudgetError: Its budget is not valid.
        UnknownNameError: A name in its settings is unknown.
    """
    settings, solve = requested_of(schedule), schedule.solve
    kept = without_recomputes(step.captured.graph, step.parts, solve.strategy, solve.solver)
    budget = parse_budget(settings.budget).resolve(kept.peak)
    if is_over_budget(schedule):
        budget = max(budget, solve.budget)
    costs = cost or solve.cost
    compiled = Compiled(budget) if costs == COMPILED else None
    if compiled and solve.compiled:  # the budget of the interpreter grows with it
        budget = max(budget, round(solve.budget / max(1, solve.compiled.budget) * budget))
    bare = schedule_of(step, kept, budget, costs, settings=solve.settings, compiled=compiled, name=schedule.name)
    bare = replace(bare, solve=replace(bare.solve, lower_bound=None, gap=None))
    old, new = analyse(schedule), analyse(bare)
    carried = carry(old, bare)
    result = carried.schedule
    if solve.lower_bound is not None and budget <= solve.budget and _unnamed(old.graph) == _unnamed(new.graph):
        result = replace(result, solve=replace(result.solve, lower_bound=solve.lower_bound))
        now = analyse(result)
        result = replace(result, solve=replace(result.solve, gap=gap(now)))
        if not carried.left_out and now.timeline.time == old.timeline.time:  # the whole plan was transferred
            result = replace(result, solve=replace(result.solve, stopped_by=solve.stopped_by))
    return replace(carried, schedule=refreshed(result).schedule)


def _unnamed(graph: Graph) -> Graph:
    """A step without names of operations and values, and without source places."""
    return replace(
        graph,
        operations=tuple(replace(op, id="", source="") for op in graph.operations),
        values=tuple(replace(value, name="") for value in graph.values),
    )
