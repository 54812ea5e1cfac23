"""`remate fmt`: write schedule files in canonical form. Notes are kept.

With --figures, also compute the derived figures of `solve` (peak, time, baselines, gap) after an edit or a merge. The
budget is a decision and stays.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..present.text import count
from . import exit_codes
from .output import say, say_aside
from .several import Report, each

if TYPE_CHECKING:
    from ..schedule_tools.figures import Refreshed


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "fmt",
        help="write schedule files in canonical form",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("schedules", metavar="S.json", nargs="+", help="schedule files")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    parser.add_argument("--figures", action="store_true", help="compute peak, time, baselines and gap again")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    changed: list[str] = []
    with Report("text", False) as report:
        status = each(args.schedules, lambda path: _format(path, args, changed, report))
    if changed and args.check:
        option = " --figures" if args.figures else ""
        say_aside(f"hint: remate fmt{option} rewrites {count(len(changed), 'file')}")
        return max(status, exit_codes.FINDINGS)
    return status


def _format(path: str, args: argparse.Namespace, changed: list[str], report: Report) -> int:
    from remate_runtime.errors import ScheduleError
    from remate_runtime.format import read, save

    from ..schedule_tools.canonical import formatted

    try:
        result = formatted(path, figures=args.figures)
    except ScheduleError as error:
        if error.code == "R000":
            raise
        return report.faults(path, read(path), error.faults)
    if result.changed:
        if not args.check:
            save(result.schedule, path)
        changed.append(path)
        off = result.figures is not None and bool(result.figures.changes)
        say(f"{path}: {('figures are off' if off else 'not canonical') if args.check else 'rewritten'}")
    if result.figures is not None:
        _print_changes(path, result.figures)
    return exit_codes.FINE


def _print_changes(path: str, figures: Refreshed) -> None:
    for name, old, new in figures.changes:
        say(f"  {name}: {_number(old)} -> {_number(new)}")
    for remark in figures.remarks:
        say_aside(f"warning: {path}: {remark}")


def _number(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:,}"
