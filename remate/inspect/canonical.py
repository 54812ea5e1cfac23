"""`remate fmt`: schedule files in canonical form, notes kept."""

from __future__ import annotations

from pathlib import Path

from remate_runtime.format import decode, encode, read, save


def is_canonical(path: str | Path) -> bool:
    """Whether `format_file` would leave the file as it is. Raises ScheduleError if it cannot be read."""
    data = read(path)
    return encode(decode(data)) == data


def format_file(path: str | Path) -> bool:
    """Rewrite the file, atomically, if it is not canonical. True if it was rewritten.

    Raises ScheduleError if it cannot be read; a faulty file is never touched.
    """
    data = read(path)
    schedule = decode(data)
    if encode(schedule) == data:
        return False
    save(schedule, path)
    return True
