"""Reads schedules from a file, or from standard input (`-`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .usage import UsageError

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis

STDIN = "-"
_SHOWN = "standard input"


def data_of(path: str) -> bytes:
    """The bytes of a file, or of standard input. Raises ScheduleError R000 or R070, UsageError."""
    from remate_runtime.format import MAX_FILE_BYTES, read

    if path != STDIN:
        return read(path)
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise UsageError("- needs a file on standard input\n  hint: name a file instead of -, or pipe one")
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if not data:
        raise UsageError("standard input is empty\n  hint: pipe one schedule file")
    return data


def opened(path: str) -> Analysis:
    """Open the schedule at `path`. Raises UsageError, and ScheduleError, which names the file."""
    from remate_runtime.errors import ScheduleError

    from ..schedule_tools.analysis import open_schedule, open_text

    if path != STDIN:
        return open_schedule(path)
    try:
        return open_text(data_of(path))
    except ScheduleError as error:
        error.file = _SHOWN
        raise
