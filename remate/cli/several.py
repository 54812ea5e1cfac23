"""Commands that take several files. A fault in one file does not stop the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from remate_runtime.errors import ScheduleError
from remate_runtime.format import MAX_FAULTS

from ..present.text import count, json_text
from . import exit_codes
from .output import say_aside

if TYPE_CHECKING:
    from ..present.faults import FaultReport


def each(paths: Sequence[str], work: Callable[[str], int]) -> int:
    """Call `work` with every path and return the greatest exit status. A file that cannot be read is reported."""
    from . import print_error, status_of

    status = exit_codes.FINE
    for path in paths:
        try:
            status = max(status, work(path))
        except ScheduleError as error:
            print_error(str(error))
            status = max(status, status_of(error))
    return status


class Report:
    """Prints findings: as text to stderr at once, as JSON or annotations to stdout.

    several: print one JSON array of all files at the end, instead of one object.
    """

    def __init__(self, form: str, several: bool) -> None:
        self.form, self.several = form, several
        self._records: list[Any] = []

    def __enter__(self) -> Report:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if self.form == "json" and self.several and kind is None:
            print(json_text(self._records))

    def faults(self, path: str, data: bytes, faults: Sequence[ScheduleError]) -> int:
        """Print the faults of a file and their count, and return the exit status."""
        from ..present.faults import FAULTS
        from . import status_of

        more = ", and there may be more" if len(faults) >= MAX_FAULTS else ""
        total = f"{path}: {count(len(faults), 'fault')}{more}"
        self.show(path, data, faults, FAULTS, total)
        return max((status_of(fault) for fault in faults), default=exit_codes.FINE)

    def show(self, path: str, data: bytes, findings: Sequence[ScheduleError], kind: FaultReport, total: str) -> None:
        from ..present.faults import render

        shown = render(self.form, path, data, findings, kind)
        if self.form == "text":
            say_aside(f"{shown}\n{total}")
        elif self.form == "json" and self.several:
            self._records.append(json.loads(shown))
        elif shown:
            print(shown)
