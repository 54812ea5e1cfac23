"""Checks of the numbers that a planner was requested. Needs no torch."""

from __future__ import annotations

from .limits import MAX_THREADS
from .literals import Faults
from .schedule import Settings


def check_settings(faults: Faults, settings: Settings, where: str) -> None:
    """The fields `threads`, `gap` and `time_limit`."""
    if not 0 <= settings.threads <= MAX_THREADS:
        faults.add("R013", f"threads are 0 to {MAX_THREADS}", f"{where}/threads", "")
    if not 0 <= settings.gap < 1e9:
        faults.add("R013", "not a share", f"{where}/gap", "0.01 means one per cent of the baseline time")
    if settings.time_limit is not None and not 0 < settings.time_limit < 1e9:
        faults.add("R013", "not a time", f"{where}/time_limit", "seconds, more than none")
