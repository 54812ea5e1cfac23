"""The derived figures of `solve`: always computed from the schedule."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import is_paged_gradient, is_parameter
from remate_runtime.format import Schedule, Settings, decode

from .analysis import Analysis, analyse

FIGURES = ("peak", "time", "baseline_peak", "baseline_time")
_DIGITS = 6  # of a gap
_WEIGHTS = "weight-offloading"  # proves bounds of schedules that page parameters and gradients, and recompute nothing
GAP_TOLERANCE = 1e-6  # the gap is written as a rounded decimal


class Refreshed(msgspec.Struct, frozen=True):
    """A schedule with correct figures. changes: (field of `solve`, recorded value, computed value). remarks: notes for
    the user."""

    schedule: Schedule
    changes: tuple[tuple[str, int | float | None, int | float | None], ...]
    remarks: tuple[str, ...]


def computed(opened: Analysis) -> dict[str, int]:
    """FIGURES of the schedule: bytes and nanoseconds."""
    planned, base = opened.timeline, opened.baseline
    return dict(zip(FIGURES, (planned.peak, planned.time, base.peak, base.time), strict=True))


def refreshed(schedule: Schedule) -> Refreshed:
    """Compute peak, time, the baseline's peak and time, and the gap. The budget stays, because it is a decision. A
    bound is dropped if it was proven for other costs or the schedule refutes it. Raises ScheduleError."""
    opened = analyse(schedule)
    simulated = computed(opened)
    solve, remarks = schedule.solve, list[str]()
    bound = solve.lower_bound
    if bound is not None and not bounded(opened):
        bound = None
        remarks.append(
            "the bound does not cover what this plan pages, and is dropped; `remate replan` proves a new one"
        )
    elif bound is not None and any(
        getattr(solve, name) != simulated[name] for name in ("baseline_peak", "baseline_time")
    ):
        bound = None
        remarks.append(
            "the bound was proven for other costs of the operations and is dropped; `remate replan` proves a new one"
        )
    elif bound is not None and simulated["peak"] <= solve.budget and simulated["time"] < bound:
        bound = None
        remarks.append(
            "it is faster than its bound, which was proven for another budget or other costs and is dropped; "
            "`remate replan` proves a new one"
        )
    if simulated["peak"] > solve.budget:
        over = f"{simulated['peak'] - solve.budget:,} bytes"
        remarks.append(
            f"its peak is {over} over the budget: recompute more (`remate explain` reports the largest values), "
            f'or write "budget": {simulated["peak"]} if this is intended'
        )
    left = None if bound is None or solve.gap is None else gap(opened)
    if left is not None and solve.gap is not None and abs(left - solve.gap) <= GAP_TOLERANCE:
        left = solve.gap  # written with more digits
    figures: dict[str, Any] = {**simulated, "lower_bound": bound, "gap": left}
    if solve.compiled is not None and solve.compiled.peak is not None and simulated["peak"] != solve.peak:
        solve = replace(solve, compiled=replace(solve.compiled, peak=None))
        remarks.append(
            "the peak of the compiled step was predicted for another plan and is dropped; "
            "`remate check --engine compiled` reports it"
        )
    changes = [(name, getattr(solve, name), new) for name, new in figures.items() if getattr(solve, name) != new]
    return Refreshed(replace(schedule, solve=replace(solve, **figures)), tuple(changes), tuple(remarks))


def proven_of(settings: Settings | None) -> str:
    """Return what the schedules do that a bound with these settings is proven of."""
    if settings is None or not (settings.disk_budget or settings.host_budget):
        return "recomputing"
    return "paging parameters and gradients" if settings.strategy == _WEIGHTS else "recomputing and paging"


def proven_schedule(settings: Settings | None) -> str:
    """Return the name of the schedules that a bound with these settings is proven of, as in: no schedule is faster."""
    kind = proven_of(settings)
    return {
        "recomputing": "schedule",
        "recomputing and paging": "schedule that recomputes and pages",
    }.get(kind, "schedule that pages parameters and gradients, and recomputes nothing,")


def bounded(opened: Analysis) -> bool:
    """Whether a file has a bound that covers its plan. A bound that counts pages is of results of forward that leave
    through the lanes of the file; a bound of weight offloading is of parameters and gradients."""
    schedule, graph, pages = opened.schedule, opened.graph, opened.expanded.pages
    if schedule.solve.lower_bound is None:
        return False
    kind = proven_of(schedule.solve.settings)
    trained = [is_parameter(graph, page.value) or is_paged_gradient(graph, page.value) for page in pages]
    through = all(page.to in schedule.lanes for page in pages)
    if kind == "paging parameters and gradients":
        nothing_else = through and len(schedule.lanes) == 1 and all(trained) and not opened.expanded.recomputes
        counted = opened.linked.parameters_paged  # otherwise the budget is of other bytes
        return schedule.solve.lower_bound <= opened.baseline.time or (nothing_else and counted)
    return not opened.linked.paged or (kind == "recomputing and paging" and through and not any(trained))


def gap(opened: Analysis) -> float | None:
    """Upper bound for how much slower the schedule is than the fastest one within its budget, as a share of the
    baseline's time. None if no bound covers it, or the peak exceeds the budget."""
    solve, timeline = opened.schedule.solve, opened.timeline
    if solve.lower_bound is None or not bounded(opened) or timeline.peak > solve.budget or not opened.baseline.time:
        return None
    return round((timeline.time - solve.lower_bound) / opened.baseline.time, _DIGITS)


def decode_without_figures(data: bytes) -> Schedule:
    """Like `decode`, but FIGURES may be missing and are then zero. Raises ScheduleError."""
    try:
        return decode(data)
    except ScheduleError as error:
        if not all(fault.code == "R011" and fault.where == "/solve" for fault in error.faults):
            raise
    tree = json.loads(data)
    tree["solve"] = {**dict.fromkeys(FIGURES, 0), **tree["solve"]}
    try:
        return decode(json.dumps(tree))
    except ScheduleError:
        return decode(data)  # report other missing fields at their places in the file
