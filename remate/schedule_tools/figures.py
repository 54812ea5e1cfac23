"""The derived figures of `solve`: computed from the schedule, never typed by a person."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Schedule, decode

from .analysis import Analysis, analyse

FIGURES = ("peak", "time", "baseline_peak", "baseline_time")
_DIGITS = 6  # of a gap
GAP_TOLERANCE = 1e-6  # the gap is written as a rounded decimal


class Refreshed(msgspec.Struct, frozen=True):
    """A schedule with true figures. changes: (field of `solve`, as it was recorded, as it is). remarks: what a person
    should know or do besides."""

    schedule: Schedule
    changes: tuple[tuple[str, int | float | None, int | float | None], ...]
    remarks: tuple[str, ...]


def computed(opened: Analysis) -> dict[str, int]:
    """FIGURES of the schedule: bytes and nanoseconds."""
    planned, base = opened.timeline, opened.baseline
    return dict(zip(FIGURES, (planned.peak, planned.time, base.peak, base.time), strict=True))


def refreshed(schedule: Schedule) -> Refreshed:
    """Compute peak, time, their baselines and the gap. The budget, which is a decision, stays; a bound that was proven
    for other costs, or that the schedule refutes, goes. Raises ScheduleError."""
    opened = analyse(schedule)
    found = computed(opened)
    solve, remarks = schedule.solve, list[str]()
    bound = solve.lower_bound
    if bound is not None and opened.linked.paged:
        bound = None
        remarks.append("the bound is of plans that recompute only, values are paged: it is left out")
    elif bound is not None and any(getattr(solve, name) != found[name] for name in ("baseline_peak", "baseline_time")):
        bound = None
        remarks.append(
            "the bound was proven for other costs of the operations and is left out; `remate replan` proves one"
        )
    elif bound is not None and found["peak"] <= solve.budget and found["time"] < bound:
        bound = None
        remarks.append(
            "it is faster than its bound, which was proven for another budget or other costs and is left out; "
            "`remate replan` proves one"
        )
    if found["peak"] > solve.budget:
        over = f"{found['peak'] - solve.budget:,} bytes"
        remarks.append(
            f"its peak is {over} over the budget: recompute more (`remate explain` reports what costs most), or write "
            f'"budget": {found["peak"]} if this is meant'
        )
    left = None if bound is None or solve.gap is None else gap(opened)
    if left is not None and solve.gap is not None and abs(left - solve.gap) <= GAP_TOLERANCE:
        left = solve.gap  # written with more digits
    figures: dict[str, Any] = {**found, "lower_bound": bound, "gap": left}
    if solve.compiled is not None and solve.compiled.peak is not None and found["peak"] != solve.peak:
        solve = replace(solve, compiled=replace(solve.compiled, peak=None))
        remarks.append(
            "what it holds where it is compiled was predicted for another plan and is left out; "
            "`remate check --engine compiled` reports it"
        )
    changes = [(name, getattr(solve, name), new) for name, new in figures.items() if getattr(solve, name) != new]
    return Refreshed(replace(schedule, solve=replace(solve, **figures)), tuple(changes), tuple(remarks))


def gap(opened: Analysis) -> float | None:
    """How much of the baseline time the schedule may be slower than the fastest one within its budget; None if no
    bound is known, the budget is not met, or values are paged, which no bound looks at."""
    solve, timeline = opened.schedule.solve, opened.timeline
    if solve.lower_bound is None or opened.linked.paged or timeline.peak > solve.budget or not opened.baseline.time:
        return None
    return round((timeline.time - solve.lower_bound) / opened.baseline.time, _DIGITS)


def decode_without_figures(data: bytes) -> Schedule:
    """`decode`, where FIGURES may be missing: they are zero. Raises ScheduleError."""
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
        return decode(data)  # what else is missing, at its place in the file
