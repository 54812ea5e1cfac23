"""`remate fmt`: schedule files in canonical form. Notes stay."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remate_runtime.format import Schedule, decode, encode, read

from .analysis import faults_located
from .figures import Refreshed, decode_without_figures, refreshed
from .lines import with_features


class Formatted(msgspec.Struct, frozen=True):
    """The formatted schedule. changed: whether its text differs from the file. figures: corrected figures, if
    requested."""

    schedule: Schedule
    changed: bool
    figures: Refreshed | None = None


def formatted(path: str | Path, *, figures: bool = False) -> Formatted:
    """Read a file to write it canonically. figures: compute those of `solve`, too. Writes nothing.

    Raises ScheduleError if it cannot be read.
    """
    data = read(path)
    refreshed_figures = _with_figures(data) if figures else None
    schedule = with_features(refreshed_figures.schedule if refreshed_figures else decode(data))
    return Formatted(schedule, encode(schedule) != data, refreshed_figures)


def _with_figures(data: bytes) -> Refreshed:
    schedule = decode_without_figures(data)
    with faults_located(data):
        return refreshed(schedule)
