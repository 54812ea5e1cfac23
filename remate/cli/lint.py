"""`remate lint`: find lines of a schedule file that are legal but probably a mistake. Codes: schema/lint.md.

With `--format json`, one file gives an object and several files give an array.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..present.text import count
from . import exit_codes
from .inputs import data_of
from .output import say
from .several import Report, each

_SHOWN = 100


def configure(commands: Any) -> None:
    parser = commands.add_parser("lint", help="find what is legal but suspicious", description=__doc__)
    parser.add_argument("schedules", metavar="S.json", nargs="+", help="schedule files; -: standard input")
    parser.add_argument("--format", choices=("text", "json", "github"), default="text", help="default text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with Report(args.format, len(args.schedules) > 1) as report:
        return each(args.schedules, lambda path: _lint(path, report))


def _lint(path: str, report: Report) -> int:
    from remate_runtime.errors import ScheduleError
    from remate_runtime.format import locate

    from ..present.faults import FaultReport
    from ..schedule_tools.analysis import open_text
    from ..schedule_tools.lint import CODES, lint

    data = data_of(path)
    try:
        opened = open_text(data)
    except ScheduleError as error:
        return report.faults(path, data, error.faults)
    warnings = locate(data.decode(), lint(opened, path))
    listed = warnings[:_SHOWN] if report.form == "text" else warnings
    if warnings or report.form != "text":
        rest = f", the first {_SHOWN} shown" if len(warnings) > _SHOWN else ""
        total = f"{path}: {count(len(warnings), 'warning')}{rest}"
        report.show(path, data, listed, FaultReport("warning", CODES, "warnings"), total)
    else:
        say(f"{path}: nothing suspicious")
    return exit_codes.FINDINGS if warnings else exit_codes.FINE
