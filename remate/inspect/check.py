"""What `check` looks at beyond the reader: whether the recorded figures are true, and the step still the planned one.

The published JSON Schema is for editors. It is not run here: the reader refuses all that it refuses (the tests of the
format hold it to that), and takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from remate_runtime.errors import ScheduleError
from remate_runtime.format import check_fingerprint, locate

from .analysis import Analysis

_GAP_TOLERANCE = 1e-6  # the gap is written as a rounded decimal


def findings(opened: Analysis, text: str) -> list[ScheduleError]:
    """All faults of a schedule that could be opened, with their places in `text`; empty if it keeps its promises."""
    return locate(text, [*_edited(opened), *promises(opened)])


def _edited(opened: Analysis) -> Iterator[ScheduleError]:
    """R083 if the step is not the one that was planned: a runtime would refuse the file."""
    try:
        check_fingerprint(opened.schedule)
    except ScheduleError as fault:
        yield fault


def promises(opened: Analysis) -> Iterator[ScheduleError]:
    """Figures of the solve record that the schedule does not give (R081), and a peak over the budget (R080)."""
    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.keep_all
    if timeline.peak > solve.budget:
        over = f"the peak is {timeline.peak:,} bytes, {timeline.peak - solve.budget:,} more than the budget"
        yield ScheduleError("R080", over, "/solve/budget", "add reruns, or raise the budget")
    computed: dict[str, Any] = {
        "peak": timeline.peak,
        "time": timeline.time,
        "baseline_peak": base.peak,
        "baseline_time": base.time,
    }
    for name, found in computed.items():
        recorded = getattr(solve, name)
        if recorded != found:
            message = f"{name} is recorded as {recorded:,}, the schedule gives {found:,}"
            yield ScheduleError("R081", message, f"/solve/{name}", f'write "{name}": {found}')
    yield from _bound(opened)


def _bound(opened: Analysis) -> Iterator[ScheduleError]:
    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.keep_all
    if solve.lower_bound is None:
        return
    if timeline.peak <= solve.budget and timeline.time < solve.lower_bound:
        message = f"the time {timeline.time:,} ns is below the lower bound of {solve.lower_bound:,} ns"
        yield ScheduleError("R081", message, "/solve/lower_bound", "plan the model again")
    gap = (timeline.time - solve.lower_bound) / base.time if base.time else 0.0
    if solve.gap is not None and abs(solve.gap - gap) > _GAP_TOLERANCE:
        message = f"gap is recorded as {solve.gap:g}, the schedule gives {gap:.6f}"
        yield ScheduleError("R081", message, "/solve/gap", f'write "gap": {gap:.6f}')
