"""Checks of `remate check` after reading: whether recorded figures are correct, and whether the step is unchanged."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from remate_runtime.errors import ScheduleError
from remate_runtime.format import check_fingerprint, locate

from .analysis import Analysis
from .figures import GAP_TOLERANCE, bounded, computed, gap

_REFUTED = (
    "the bound was proven for another budget or other costs: `remate fmt --figures` drops it, "
    "`remate replan` proves a new one"
)


def findings(opened: Analysis, text: str, path: str = "S.json") -> list[ScheduleError]:
    """All faults of a schedule that can be opened, with their places in `text`.

    path: name of the file for the commands in hints.
    """
    return locate(text, [*_edited(opened), *promises(opened, path)])


def _edited(opened: Analysis) -> Iterator[ScheduleError]:
    """R083 if the step was edited after planning: a runtime would refuse the file."""
    try:
        check_fingerprint(opened.schedule)
    except ScheduleError as fault:
        yield fault


def promises(opened: Analysis, path: str = "S.json") -> Iterator[ScheduleError]:
    """Figures of the solve record that differ from the schedule's (R081), and a peak above the budget (R080)."""
    solve, timeline, name = opened.schedule.solve, opened.timeline, shlex.quote(path)
    mend = f"`remate fmt --figures {name}` computes all figures again"
    if timeline.peak > solve.budget:
        over = f"the peak is {timeline.peak:,} bytes, {timeline.peak - solve.budget:,} more than the budget"
        yield ScheduleError("R080", over, "/solve/budget", _over_budget(opened, name))
    for field, simulated in computed(opened).items():
        recorded = getattr(solve, field)
        if recorded != simulated:
            message = f"{field} is recorded as {recorded:,}, the schedule gives {simulated:,}"
            yield ScheduleError("R081", message, f"/solve/{field}", mend)
    requested = solve.compiled
    if requested is not None and requested.peak is not None and requested.peak > requested.budget:
        excess = requested.peak - requested.budget
        over = f"compiled, the peak is {requested.peak:,} bytes, {excess:,} more than its budget"
        yield ScheduleError("R080", over, "/solve/compiled/budget", _over_budget(opened, name))
    yield from _bound(opened, mend)


def _over_budget(opened: Analysis, name: str) -> str:
    peak = opened.timeline.peak
    explain = f"`remate explain {name}` reports the largest values"
    return f'recompute more ({explain}), or write "budget": {peak} if this is intended'


def _bound(opened: Analysis, mend: str) -> Iterator[ScheduleError]:
    solve, timeline = opened.schedule.solve, opened.timeline
    if solve.lower_bound is None or not bounded(opened):
        return
    if timeline.peak <= solve.budget and timeline.time < solve.lower_bound:
        message = f"the time {timeline.time:,} ns is below the lower bound of {solve.lower_bound:,} ns"
        yield ScheduleError("R081", message, "/solve/lower_bound", _REFUTED)
    computed_gap = gap(opened)
    if solve.gap is not None and computed_gap is not None and abs(solve.gap - computed_gap) > GAP_TOLERANCE:
        message = f"gap is recorded as {solve.gap:g}, the schedule gives {computed_gap:.6f}"
        yield ScheduleError("R081", message, "/solve/gap", mend)
