"""Planning the model of a schedule again, as it is now: the same question as before, and what people wrote kept."""

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
from .plan import DEFAULTS, Progress, plan_step, prepare
from .settings import checked


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
    """What `remate.plan` does of the step before it solves, for the outputs and the ranges of sizes that `schedule` was
    planned for, and what it assumes of gradients; on the CPU with as many threads of torch as then where costs are
    measured, which this sets. cost: in place of the file's.

    options: profile, cache and measure_again count. Raises what `remate.plan` raises.
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
    """Plan what `prepare_again` made as `schedule` was planned: same budget, strategy, effort and gap; name and notes
    are kept. Returns the new schedule, and the notes that stood on what is no more. Raises what `remate.plan`
    raises."""
    requested = requested_of(schedule)
    made = plan_step(step, requested, cost or schedule.solve.cost, name=schedule.name, progress=progress)
    return carry_notes(schedule, made)


def requested_of(schedule: Schedule) -> Settings:
    """The settings that a schedule was planned with; for one that does not say, its budget in bytes and the defaults.
    Raises UnknownNameError, BudgetError."""
    requested = schedule.solve.settings or Settings(budget=str(schedule.solve.budget))
    parse_budget(requested.budget)
    effort_named(requested.effort)
    return checked(requested)
