"""`remate fmt`: write schedule files in canonical form, notes kept."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..present.text import count
from . import exit_codes
from .several import Report, each


def configure(commands: Any) -> None:
    parser = commands.add_parser("fmt", help="write schedule files in canonical form", description=__doc__)
    parser.add_argument("schedules", metavar="S.json", nargs="+", help="schedule files")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not canonical")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    changed: list[str] = []
    with Report("text", False) as report:
        status = each(args.schedules, lambda path: _format(path, args.check, changed, report))
    if changed and args.check:
        print(f"hint: remate fmt rewrites {count(len(changed), 'file')}", file=sys.stderr)
        return max(status, exit_codes.FINDINGS)
    return status


def _format(path: str, check: bool, changed: list[str], report: Report) -> int:
    from remate_runtime.errors import ScheduleError
    from remate_runtime.format import read

    from ..inspect.canonical import format_file, is_canonical

    try:
        changes = not is_canonical(path) if check else format_file(path)
    except ScheduleError as error:
        if error.code == "R000":
            raise
        return report.faults(path, read(path), error.faults)
    if changes:
        changed.append(path)
        print(f"{path}: {'not canonical' if check else 'rewritten'}")
    return exit_codes.FINE
