"""`remate lint`: what is legal in a schedule file and yet most likely not meant. The codes: schema/lint.md."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from . import exit_codes
from .text import count

_SHOWN = 100


def configure(commands: Any) -> None:
    parser = commands.add_parser("lint", help="find what is legal but suspicious", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file")
    parser.add_argument("--format", choices=("text", "json", "github"), default="text", help="default text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from remate_runtime.decode import read
    from remate_runtime.positions import locate

    from ..opened import open_text
    from ..report_faults import Kind, render
    from ..review.lint import CODES, lint

    data = read(args.schedule)
    found = locate(data.decode(), lint(open_text(data), args.schedule))
    listed = found[:_SHOWN] if args.format == "text" else found
    shown = render(args.format, args.schedule, data, listed, Kind("warning", CODES, "warnings"))
    if args.format != "text":
        print(shown, end="\n" if shown else "")
    elif found:
        rest = f", the first {_SHOWN} shown" if len(found) > _SHOWN else ""
        print(shown, f"{args.schedule}: {count(len(found), 'warning')}{rest}", sep="\n", file=sys.stderr)
    else:
        print(f"{args.schedule}: nothing suspicious")
    return exit_codes.FINDINGS if found else exit_codes.FINE
