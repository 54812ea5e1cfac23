"""`remate fmt`: write schedule files in canonical form, notes kept."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from . import exit_codes
from .text import count


def configure(commands: Any) -> None:
    parser = commands.add_parser("fmt", help="write schedule files in canonical form", description=__doc__)
    parser.add_argument("schedules", metavar="S.json", nargs="+", help="schedule files")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not canonical")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from remate_runtime.decode import read
    from remate_runtime.errors import ScheduleError

    from ..formatting import format_file, is_canonical
    from ..report_faults import render
    from . import status_of

    status, changed = exit_codes.FINE, 0
    for path in args.schedules:
        try:
            changes = not is_canonical(path) if args.check else format_file(path)
        except ScheduleError as error:
            if error.code == "R000":
                raise
            print(render("text", path, read(path), error.faults), file=sys.stderr)
            status = max(status, *(status_of(fault) for fault in error.faults))
            continue
        if changes:
            changed += 1
            print(f"{path}: {'not canonical' if args.check else 'rewritten'}")
    if changed and args.check:
        print(f"hint: remate fmt rewrites {count(changed, 'file')}", file=sys.stderr)
        status = max(status, exit_codes.FINDINGS)
    return status
