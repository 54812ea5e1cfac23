"""`remate report`: write a self-contained HTML page with memory over the step, its largest values, plans,
recomputations, and other budgets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..present.text import count, plain, size
from . import exit_codes
from .output import PAGE, add_force, check_output, say, say_aside, write_output, written
from .sizes import add_at, opened_at
from .usage import UsageError


def configure(commands: Any) -> None:
    parser = commands.add_parser("report", help="write a page about a schedule, for a browser", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file; -: standard input")
    parser.add_argument("-o", "--output", metavar="OUT.html", required=True, help="the page; - for standard output")
    parser.add_argument("--trace", metavar="TRACE.json", help="a measured curve, from `remate run --memory-trace`")
    parser.add_argument("--frontier", metavar="DIR", help="a folder of schedules of the same step for other budgets")
    add_force(parser)
    add_at(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..present.report import frontier, page
    from ..step_measurement.memory_trace import load_memory_trace

    if args.frontier and not Path(args.frontier).is_dir():
        raise UsageError(f"{args.frontier} is not a folder\n  hint: --frontier takes a folder of schedule files")
    check_output(args.output, PAGE, args.force)
    opened = opened_at(args.schedule, args.at)
    trace = load_memory_trace(args.trace, opened.schedule) if args.trace else None
    curve = frontier(opened, args.schedule, args.frontier) if args.frontier else None
    for name, why in curve.skipped if curve else ():
        say_aside(f"warning: {plain(name)} left out of the frontier: {plain(why)}")
    text = page(opened, trace, curve).encode()
    write_output(args.output, text)
    shown = f", {count(len(curve.points), 'schedule')} on the frontier" if curve else ""
    say(written(args.output, f", {size(len(text))}{shown}"), args.output)
    return exit_codes.FINE
