"""Plans the current model with the settings of a schedule, and keeps its name and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from remate_runtime.format import Schedule, Settings

from ..budget import parse_budget
from ..capture.recorded import called
from ..capture.signature import argument_names
from ..dims.again import requested_again
from ..dims.open_sizes import OpenSizes
from ..partition.hierarchy import Hierarchy
from ..profile.costing import MEASURED, operator_costs
from ..schedule_tools.notes import carry_notes
from ..strategy import effort_named
from .elsewhere import gpu_of_file
from .options import PlanOptions
from .over_budget import is_over_budget
from .plan import DEFAULTS, Progress, plan_step, prepare
from .settings import checked
from .sharding import sharding_again


def prepare_again(
    schedule: Schedule,
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    cost: str | None = None,
    options: PlanOptions = DEFAULTS,
    progress: Progress | None = None,
) -> Hierarchy:
    """Capture and cost the step of the current model with the settings of a schedule.

    The settings are outputs, ranges of sizes, use of gradients and live attributes. If costs are measured on the CPU,
    the number of torch's threads is set to that of the schedule.

    Args:
        schedule: The schedule.
        model: The live model, or a recorded call.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        cost: A cost model to use instead of the file's.
        options: `profile`, `cache` and `measure_again` are used.
        progress: Function that gets lines of progress.

    Raises:
        RemateError: As for `remate.plan`.
    """
    requested, cost = requested_of(schedule), operator_costs(cost or schedule.solve.cost)
    if requested.threads and cost == MEASURED:
        torch.set_num_threads(requested.threads)
    call = called(model, args, kwargs)
    options = replace(
        options,
        differentiate=requested.differentiate or None,
        gradients=schedule.solve.gradients,
        live=requested.live,
        **sharding_again(schedule.model),
    )
    if schedule.model.at:
        from .parts import prepare_part_again

        return prepare_part_again(schedule, call, cost, options, progress)
    dims = requested_again(schedule, argument_names(call.model, len(call.args)))
    sizes, gpu = OpenSizes(dims, parse_budget(requested.budget).share is None), gpu_of_file(schedule)
    return prepare(call, cost=cost, options=options, open_sizes=sizes, gpu=gpu, progress=progress)


def replan(
    schedule: Schedule, step: Hierarchy, cost: str | None = None, progress: Progress | None = None
) -> tuple[Schedule, tuple[str, ...]]:
    """Plan a step with the budget, strategy, effort, gap, name and notes of a schedule.

    Args:
        schedule: The schedule.
        step: The step of the current model, from `prepare_again`.
        cost: A cost model to record instead of the file's.
        progress: Function that gets lines of progress.

    Returns:
        The new schedule, and the notes whose places no longer exist.

    Raises:
        RemateError: As for `remate.plan`.
    """
    requested = requested_of(schedule)
    names: dict[str, Any] = {"name": schedule.name, "or_smallest": is_over_budget(schedule), "progress": progress}
    replanned = plan_step(step, requested, cost or schedule.solve.cost, **names)
    return carry_notes(schedule, replanned)


def requested_of(schedule: Schedule) -> Settings:
    """The settings of a schedule; by default its budget in bytes. Raises UnknownNameError, BudgetError."""
    requested = schedule.solve.settings or Settings(budget=str(schedule.solve.budget))
    parse_budget(requested.budget)
    effort_named(requested.effort)
    return checked(requested)
