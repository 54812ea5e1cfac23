"""From a solution to a schedule: templates, statements, figures, and a check of what was written."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from remate_runtime.errors import RemateError
from remate_runtime.flat_step import expand
from remate_runtime.format import (
    FORMAT,
    PAGE_FEATURE,
    RANKS_FEATURE,
    REVISION,
    SPLIT_FEATURE,
    VERSION,
    Compiled,
    Model,
    Schedule,
    Settings,
    Solve,
    fingerprint,
)
from remate_runtime.link import link, simulate
from remate_runtime.operator_calls import needed
from remate_runtime.support.gc_pause import gc_paused

from ..block_templates.folding import fold
from ..dims.generic import prove
from ..partition.hierarchy import Hierarchy
from ..profile.costing import MEASURED, costs_digest, operator_costs
from ..schedule_tools.schema_file import SCHEMA_URL
from ..splits.enough_rows import with_enough_rows
from ..splits.tile_costs import merged
from ..splits.tiled_step import TiledStep
from ..strategy import Solution


def _required(model: Model, paged: bool, split: bool) -> tuple[str, ...]:
    """Return the features that a reader of the file must have."""
    features = (PAGE_FEATURE, paged), (RANKS_FEATURE, bool(model.ranks)), (SPLIT_FEATURE, split)
    return tuple(feature for feature, used in features if used)


def schedule_of(
    step: Hierarchy,
    solution: Solution,
    budget: int,
    cost: str,
    *,
    settings: Settings | None = None,
    compiled: Compiled | None = None,
    name: str,
    note: str = "",
    tiled: TiledStep | None = None,
) -> Schedule:
    """Convert a solution to a schedule, expand that again, and compare its peak and time with the solution.

    Args:
        step: The prepared step.
        solution: The solution.
        budget: The budget in bytes.
        cost: The cost model.
        settings: Settings to record.
        compiled: Figures of compiled execution.
        name: Name of the schedule.
        note: Note for the file.
        tiled: The step that was solved, if it has splits.

    Raises:
        RemateError: The schedule does not have the peak and time of the solution.
    """
    measured = operator_costs(cost) == MEASURED
    if settings is not None and measured and step.captured.graph.device == "cpu":
        settings = replace(settings, threads=torch.get_num_threads())
    written_step = step.captured if step.sized is None else step.sized.generic
    recomputes, stated = (solution.recomputes, ()) if tiled is None else tiled.divided(solution.recomputes)
    menu = solution.menu if tiled is None else ()
    with gc_paused():
        folded = fold(written_step, recomputes, step, menu, solution.pages)
    splits = () if tiled is None else tiled.splits
    schedule = Schedule(
        schema=SCHEMA_URL,
        format=FORMAT,
        version=VERSION,
        revision=REVISION,
        requires=_required(folded.model, bool(solution.pages), bool(splits)),
        namespaces=needed(step.captured.graph),
        name=name,
        note=note,
        model=folded.model,
        solve=Solve(
            strategy=solution.strategy,
            solver=solution.solver,
            stopped_by=solution.stopped_by,
            cost=cost,
            profile=costs_digest(step.captured.graph) if measured else "",
            gradients=step.captured.graph.delivered,
            budget=budget,
            peak=solution.peak,
            time=solution.time,
            baseline_peak=solution.baseline_peak,
            baseline_time=solution.baseline_time,
            lower_bound=solution.lower_bound,
            gap=solution.gap,
            compiled=compiled,
            settings=settings,
            parts=solution.parts,
        ),
        blocks=folded.blocks,
        program=folded.program,
        statements=(*splits, *folded.statements, *stated),
        digest=step.captured.digest,
        costs=folded.costs if tiled is None else merged(folded.costs, tiled.costs.ns),
        tile_workspaces={} if tiled is None else tiled.costs.workspaces,
        lanes={page.to: step.captured.graph.lanes[page.to] for page in solution.pages},
    )
    if tiled is not None and step.sized is not None:
        with gc_paused():
            schedule = with_enough_rows(schedule, step.sized.given)
    schedule = replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))
    with gc_paused():
        if step.sized is not None:
            prove(schedule, step)
        written = expand(schedule)
    timeline = simulate(link(written.graph, written.recomputes, written.pages))
    if (timeline.peak, timeline.time) != (solution.peak, solution.time):
        raise RemateError(
            f"the schedule written has peak {timeline.peak} and time {timeline.time}, the solution {solution.peak} and "
            f"{solution.time}\n  hint: this is a defect of remate; please report it with the model"
        )
    return schedule
