"""`remate migrate`: convert a schedule file of an older version to the current one. Its meaning stays the same."""

from __future__ import annotations

import argparse
from typing import Any

from . import exit_codes
from .output import SCHEDULE, add_force, check_output, say, write_output, written


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="convert a schedule file to the current version",
        description=__doc__,
        epilog="exit status: 4 if the file has a newer version; with --check 1 if it has an older one",
    )
    parser.add_argument("schedule", metavar="S.json", help="a schedule file")
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "-o", "--output", metavar="OUT", help="write here, - for standard output; default: S.json itself"
    )
    target.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file has an older version")
    add_force(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from remate_runtime.format import VERSION, checked_text, read

    from ..schedule_tools.migrate import migrate

    if args.output:
        check_output(args.output, SCHEDULE, args.force)
    migrated = migrate(read(args.schedule))
    current = migrated.version == VERSION
    state = f"{args.schedule}: version {migrated.version}"
    if args.check:
        say(f"{state}, {'current' if current else f'the current one is {VERSION}'}")
        return exit_codes.FINE if current else exit_codes.FINDINGS
    say(f"{state}, already current" if current else f"{state} -> {VERSION}", args.output)
    if args.output or not current:
        output = args.output or args.schedule
        write_output(output, checked_text(migrated.schedule))
        say(written(output), output)
    return exit_codes.FINE
