"""`remate fmt`: schedule files in canonical form, notes kept."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remate_runtime.errors import ScheduleError, ScheduleFaultsError
from remate_runtime.format import Schedule, decode, encode, locate, read

from .figures import Refreshed, decode_without_figures, refreshed
from .lines import with_features


class Formatted(msgspec.Struct, frozen=True):
    """What the file becomes. changed: it is not that yet. figures: those that were wrong, if they were to be
    computed."""

    schedule: Schedule
    changed: bool
    figures: Refreshed | None = None


def formatted(path: str | Path, *, figures: bool = False) -> Formatted:
    """Read a file to write it canonically. figures: compute those of `solve`, too. Writes nothing.

    Raises ScheduleError if it cannot be read.
    """
    data = read(path)
    found = _with_figures(data) if figures else None
    schedule = with_features(found.schedule if found else decode(data))
    return Formatted(schedule, encode(schedule) != data, found)


def _with_figures(data: bytes) -> Refreshed:
    schedule = decode_without_figures(data)
    try:
        return refreshed(schedule)
    except ScheduleError as error:
        raise ScheduleFaultsError(locate(data.decode(), error.faults)) from None
