"""`remate check`: is a schedule file valid, what does it really cost, and does it still fit the live model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import exit_codes
from .text import PEAK_NOTE, count, percent, size

if TYPE_CHECKING:
    from remate_runtime.errors import ScheduleError

    from ..opened import Opened
    from ..staleness import Difference

_SHOWN = 20


def configure(commands: Any) -> None:
    parser = commands.add_parser("check", help="check a schedule file, or whether it fits a model", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file")
    parser.add_argument("--model", metavar="FILE.py:build", help="also compare with what this function builds")
    parser.add_argument(
        "--format", choices=("text", "json", "github"), default="text", help="how faults are printed (default: text)"
    )
    parser.add_argument("--quiet", action="store_true", help="print findings only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from remate_runtime.decode import read
    from remate_runtime.errors import ScheduleError

    from ..checking import findings
    from ..opened import open_text

    data = read(args.schedule)
    report = _Report(args.format, args.schedule, data)
    try:
        opened = open_text(data)
    except ScheduleError as error:
        return report.show(error.faults)
    faults = findings(opened, data.decode())
    stale = _differences(opened, args.model) if args.model else []
    if args.format != "text":
        return report.show([*faults, *(one.fault() for one in stale)])
    if faults:
        report.show(faults)
    elif not args.quiet:
        print(_summary(args.schedule, opened))
    if stale:
        print(_stale(args.schedule, args.model, stale), file=sys.stderr)
    elif args.model and not args.quiet:
        print(f"{args.schedule}: fits {args.model}")
    return exit_codes.STALE if stale else exit_codes.FINDINGS if faults else exit_codes.FINE


class _Report(NamedTuple):
    """Prints faults of one file: text to stderr with a count, formats for programs to stdout, even if there are none."""

    form: str
    path: str
    data: bytes

    def show(self, faults: Sequence[ScheduleError]) -> int:
        from ..report_faults import render
        from . import status_of

        shown = render(self.form, self.path, self.data, faults)
        if self.form == "text":
            print(shown, f"{self.path}: {count(len(faults), 'fault')}", sep="\n", file=sys.stderr)
        elif shown:
            print(shown)
        return max((status_of(fault) for fault in faults), default=exit_codes.FINE)


def _summary(path: str, opened: Opened) -> str:
    solve, timeline, base = opened.schedule.solve, opened.timeline, opened.keep_all
    operations, reruns = len(opened.graph.operations), len(opened.expanded.reruns)
    instances = count(len(opened.schedule.program), "instance")
    overhead = f"{(timeline.time / base.time - 1) * 100:+.2f}% over keep-all" if base.time else "no costs recorded"
    return "\n".join(
        [
            f"{path}: fine",
            f"  {count(operations, 'operation')}, {instances} of {count(len(opened.schedule.blocks), 'block')}, "
            f"{count(reruns, 'rerun')}",
            f"  peak {size(timeline.peak)}, within the budget of {size(solve.budget)}; keep-all {size(base.peak)}"
            + (f" ({percent(timeline.peak / base.peak, 1)})" if base.peak else ""),
            f"  predicted time {overhead}",
            *(f"  {line}" for line in PEAK_NOTE.splitlines()),
        ]
    )


def _differences(opened: Opened, model: str) -> list[Difference]:
    from remate_runtime.signature import output_leaves

    from ..capture import capture
    from ..staleness import differences
    from .build_file import load_target

    recorded = opened.schedule.model
    target = load_target(model)
    used = [leaf.name for leaf in output_leaves(recorded.outputs) if leaf.grad]
    live = capture(target.model, target.args, target.kwargs, differentiate=used)
    return differences(recorded, live.model, opened.graph, live.graph)


def _stale(path: str, model: str, found: list[Difference]) -> str:
    lines = [f"{path}: stale, {model} differs in {count(len(found), 'point')}"]
    for one in found[:_SHOWN]:
        lines += [f"  {one.what}", f"    in the file:   {one.file}", f"    in the model:  {one.live}"]
    if len(found) > _SHOWN:
        lines.append(f"  … and {len(found) - _SHOWN} more")
    return "\n".join([*lines, f"hint: remate plan {model} -o {path}"])
