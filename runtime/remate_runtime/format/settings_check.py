"""Checks of what a planner was requested, and of the parts that it solved. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from .limits import MAX_THREADS
from .literals import Faults
from .schedule import Settings, SolvedPart


def check_settings(faults: Faults, settings: Settings, where: str) -> None:
    """The fields `threads`, `gap`, `time_limit` and `limit`."""
    if not 0 <= settings.threads <= MAX_THREADS:
        faults.add("R013", f"threads are 0 to {MAX_THREADS}", f"{where}/threads", "")
    if not 0 <= settings.gap < 1e9:
        faults.add("R013", "not a share", f"{where}/gap", "0.01 means one per cent of the baseline time")
    if settings.time_limit is not None and not 0 < settings.time_limit < 1e9:
        faults.add("R013", "not a time", f"{where}/time_limit", "seconds, more than none")
    if settings.limit is not None and not 1 <= settings.limit < 1e9:
        faults.add("R013", "not a limit", f"{where}/limit", "a multiple of the baseline's figure: 1.2")


def check_solved(faults: Faults, parts: Sequence[SolvedPart], where: str) -> None:
    """Texts and numbers of solved parts."""
    for index, part in enumerate(parts):
        for field in ("part", "solver"):
            faults.text(getattr(part, field), f"{where}/{index}/{field}")
        for field in ("level", "count", "operations", "plans", "time"):
            faults.number(getattr(part, field), f"{where}/{index}/{field}")
