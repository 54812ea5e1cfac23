"""`remate train`: run a training script, unchanged, and give the modules that it trains schedules."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require

from ..present.text import PEAK_NOTE, duration, size, table
from .output import say_aside
from .plan_options import positive
from .streams import unguarded_streams
from .usage import UsageError

if TYPE_CHECKING:
    from ..training.trained import TrainingReport

_EPILOG = f"""The script runs as by `python script.py ARGS`. Options of remate come before its name, its own after it.
remate plans each module that the script trains: the outermost one that is called in train mode and whose output gets a
gradient. Its first two steps run the module's own forward and are measured. The next one is planned, and the rest run
the schedule. If --file names a schedule that is up to date, all calls but the first run it. Under torchrun:
torchrun --nproc-per-node 2 -m remate train --budget 60% script.py ARGS. The exit status is that of the script.

{PEAK_NOTE}""".replace("%", "%%")


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="run a training script, unchanged, by schedules",
        description=__doc__,
        epilog=_EPILOG,
        usage="remate train [options] (script.py | -m MODULE) [ARGS ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", metavar="script.py", nargs="?", help="the script; what follows are its own arguments")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument(
        "--budget", metavar="BUDGET", help="of each module: 4GiB, bytes, 60%%, or min; default: where the curve bends"
    )
    parser.add_argument("--slowdown", metavar="SHARE", help="the smallest peak for so much more time: 10%%")
    parser.add_argument(
        "--file",
        metavar="S.json",
        help="keep the schedule there, and use it in the next run; of further modules beside it",
    )
    parser.add_argument(
        "--on-stale", choices=("replan", "refuse"), default="replan", help="a file of another model; default: replan"
    )
    parser.add_argument(
        "--at-once", action="store_true", help="plan the second training call: no step is measured before"
    )
    parser.add_argument(
        "--skip", metavar="CLASS", action="append", default=[], help="leave modules of this class alone"
    )
    parser.add_argument(
        "--dims", choices=("auto", "none"), default="auto", help="whether batches may be smaller; default: auto"
    )
    parser.add_argument("--cost", default="measured", help="as of remate plan; default: measured")
    parser.add_argument("--strategy", metavar="NAME", default="auto", help="how to solve; default: auto")
    parser.add_argument("--effort", metavar="LEVEL", default="normal", help="quick, normal (default) or thorough")
    parser.add_argument("--time-limit", metavar="S", type=positive, help="seconds to solve; default: none")
    parser.add_argument("--engine", metavar="NAME", default="eager", help="what executes the schedule; default: eager")
    parser.add_argument("--quiet", action="store_true", help="print nothing beside what the script does")
    parser.set_defaults(run=run)


def split_script(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of `remate train`, and those behind the name of the script or module, which are its own."""
    takes_value = {flag for action in parser._actions if action.nargs != 0 for flag in action.option_strings}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return [*words[:at], *words[at + 1 : at + 2]], list(words[at + 2 :])
        at += 1
        if not word.startswith("-"):
            break
        if word in takes_value:
            at += 1
            if word == "-m":
                break
    return list(words[:at]), list(words[at:])


def run(args: argparse.Namespace) -> int:
    require("remate train", "torch")
    from ..api.goals import check_budget
    from ..training.script import run_module, run_script
    from ..training.trained import Trained
    from ..training.watch import Watch

    if (args.script is None) == (args.module is None):
        raise UsageError("which script?\n  hint: remate train --budget 60% script.py ARGS, or -m MODULE")
    if args.script is not None and not Path(args.script).is_file():
        raise UsageError(
            f"{args.script}: no such file\n  hint: options of remate stand before the script, its own behind it"
        )
    check_budget(args.budget, args.slowdown)
    file = None if args.file is None else Path(args.file).absolute()  # the script may go elsewhere
    if file is not None:
        from ..training.plan_file import check_file

        check_file(file)
    speaks = not args.quiet and _first_rank()
    options: dict[str, Any] = {
        "budget": args.budget,
        "slowdown": args.slowdown,
        "dims": args.dims,
        "cost": args.cost,
        "engine": args.engine,
    }
    options |= {"strategy": args.strategy, "effort": args.effort, "time_limit": args.time_limit}
    trained = Trained(
        options | {"on_stale": args.on_stale, "progress": "auto" if speaks else None},
        file,
        args.skip,
        at_once=args.at_once,
    )
    with unguarded_streams(), warnings.catch_warnings(), Watch(trained):
        warnings.showwarning = args.showwarning
        status = run_script(args.script, args.rest) if args.script else run_module(args.module, args.rest)
    if speaks:
        say_aside("\n".join(["", *report(trained.reports)]))
    return status


def _first_rank() -> bool:
    """Whether this process is the one of torchrun's that speaks."""
    return os.environ.get("RANK", "0") == "0"


def report(reports: Sequence[TrainingReport]) -> list[str]:
    """What became of each module."""
    lines = []
    for one in reports:
        lines += _scheduled(one) if one.outcome.schedules else [f"remate: {one.name} was left alone: {one.refused}"]
    return lines or ["remate: no module was trained: none was called in train mode with parameters that got a gradient"]


def _scheduled(one: TrainingReport) -> list[str]:
    solves = [schedule.solve for schedule in one.outcome.schedules]
    beside = one.beside
    predicted = sum(solve.baseline_peak for solve in solves), sum(solve.peak for solve in solves)
    rows = [("", "eager", "schedule", "")]
    for what, eager, ours, text in (
        ("peak of a step", beside.eager_peak, beside.peak, size),
        ("predicted", *predicted, size),
        ("time of a step", beside.eager_time, beside.time, duration),
    ):
        share = f"{ours / eager:.2f}" if eager and ours is not None else ""
        shown = ["not measured" if x is None else text(x) for x in (eager, ours)]
        rows.append((what, shown[0], shown[1], share))
    how = f"planned in {one.outcome.seconds:.1f} s" if one.outcome.planned else f"read in {one.outcome.seconds:.1f} s"
    kept = f"; {one.file}" if one.file else "; --file S.json keeps the schedule for the next run" * one.outcome.planned
    return [
        f"remate: {one.name}, {one.steps} steps by a schedule that was {how}{kept}",
        table(rows, right=(1, 2, 3), indent="  "),
    ]
