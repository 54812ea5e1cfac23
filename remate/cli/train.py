"""`remate train`: run an unchanged training script, and plan the modules that it trains."""

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
from .plan_options import SPLIT, positive
from .streams import unguarded_streams
from .usage import UsageError

if TYPE_CHECKING:
    from ..training.trained import TrainingReport

_EPILOG = f"""The script runs as with `python script.py ARGS`. Options of remate come before its name, its own after it.
remate plans each module that the script trains: the outermost module that is called in train mode and whose output gets
a gradient. The first two steps run the module's own forward and are measured. The third step is planned, and the rest
run the schedule. If --file names a current schedule, all calls but the first run it. Under torchrun:
torchrun --nproc-per-node 2 -m remate train --budget 60% script.py ARGS. The exit status is that of the script.

{PEAK_NOTE}""".replace("%", "%%")
_NOTHING = (
    "remate: no module was planned, because none was called in train mode and got gradients; modules that "
    "torch.compile compiles are left alone: leave it out, --engine compiled compiles the schedules"
)


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="run an unchanged training script with schedules",
        description=__doc__,
        epilog=_EPILOG,
        usage="remate train [options] (script.py | -m MODULE) [ARGS ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", metavar="script.py", nargs="?", help="the script, followed by its own arguments")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument(
        "--budget",
        metavar="BUDGET",
        help="budget of each module: 4GiB, bytes, 60%%, or min; default: the knee of the curve",
    )
    parser.add_argument(
        "--slowdown", metavar="SHARE", help="instead of a budget: the smallest peak for this much extra time, 10%%"
    )
    parser.add_argument(
        "--on-infeasible",
        choices=("smallest", "error"),
        default="smallest",
        help="if no schedule meets the budget: plan the smallest peak (default), or do not plan the module",
    )
    parser.add_argument(
        "--file",
        metavar="S.json",
        help="file for the schedule, used by the next run; schedules of further modules are written beside it",
    )
    parser.add_argument(
        "--on-stale", choices=("replan", "refuse"), default="replan", help="if the file is stale; default: replan"
    )
    parser.add_argument(
        "--at-once", action="store_true", help="plan the second training call, without measuring steps of eager PyTorch"
    )
    parser.add_argument(
        "--skip", metavar="CLASS", action="append", default=[], help="do not plan modules of this class"
    )
    parser.add_argument(
        "--dims", choices=("auto", "none"), default="auto", help="whether sizes may differ between calls; default: auto"
    )
    parser.add_argument("--cost", default="measured", help="costs, as in remate plan; default: measured")
    parser.add_argument("--strategy", metavar="NAME", default="auto", help="how to solve; default: auto")
    parser.add_argument("--effort", metavar="LEVEL", default="normal", help="quick, normal (default) or thorough")
    parser.add_argument(
        "--time-limit", metavar="S", type=positive, help="limit of the search in seconds; default: none"
    )
    parser.add_argument("--split", choices=["head", "all"], help=SPLIT)
    parser.add_argument(
        "--engine", metavar="NAME", default="eager", help="engine: eager (default), arena, compiled or auto"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but the output of the script")
    parser.set_defaults(run=run)


def split_script(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into those of `remate train` with the script, and the arguments of the script."""
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
        raise UsageError(
            "train needs one script or one module\n  hint: remate train --budget 60% script.py ARGS, or -m MODULE"
        )
    if args.script is not None and not Path(args.script).is_file():
        raise UsageError(
            f"{args.script}: no such file\n  hint: options of remate come before the script, its own arguments after it"
        )
    check_budget(args.budget, args.slowdown)
    file = None if args.file is None else Path(args.file).absolute()  # the script may change the folder
    if file is not None:
        from ..training.plan_file import check_file

        check_file(file)
    prints = not args.quiet and _first_rank()
    options: dict[str, Any] = {
        "budget": args.budget,
        "slowdown": args.slowdown,
        "on_infeasible": args.on_infeasible,
        "dims": args.dims,
        "cost": args.cost,
        "split": args.split,
        "engine": args.engine,
    }
    options |= {"strategy": args.strategy, "effort": args.effort, "time_limit": args.time_limit}
    trained = Trained(
        options | {"on_stale": args.on_stale, "progress": "auto" if prints else None},
        file,
        args.skip,
        at_once=args.at_once,
    )
    with unguarded_streams(), warnings.catch_warnings(), Watch(trained):
        warnings.showwarning = args.showwarning
        status = run_script(args.script, args.rest) if args.script else run_module(args.module, args.rest)
    if prints:
        say_aside("\n".join(["", *report(trained.reports)]))
    return status


def _first_rank() -> bool:
    """Whether this is the process of torchrun that prints."""
    return os.environ.get("RANK", "0") == "0"


def report(reports: Sequence[TrainingReport]) -> list[str]:
    """The result for each module, in lines."""
    from ..training.plan_file import predicted_peaks

    lines: list[str] = []
    for module in reports:
        if module.outcome.needless:
            peak = size(predicted_peaks(module.outcome.schedules)[1])
            lines.append(f"remate: {module.name} trained with its own forward: no schedule needs less than its {peak}")
        elif module.outcome.schedules:
            lines += _scheduled(module)
        else:
            lines.append(f"remate: {module.name} was not planned: {module.refused}")
    return lines or [_NOTHING]


def _scheduled(module: TrainingReport) -> list[str]:
    from ..training.plan_file import predicted_peaks

    beside = module.beside
    predicted = predicted_peaks(module.outcome.schedules)[::-1]
    rows = [("", "eager", "schedule", "")]
    for what, eager, scheduled, unit in (
        ("peak of a step", beside.eager_peak, beside.peak, size),
        ("predicted", *predicted, size),
        ("time of a step", beside.eager_time, beside.time, duration),
    ):
        share = f"{scheduled / eager:.2f}" if eager and scheduled is not None else ""
        shown = ["not measured" if x is None else unit(x) for x in (eager, scheduled)]
        rows.append((what, shown[0], shown[1], share))
    how = (
        f"planned in {module.outcome.seconds:.1f} s"
        if module.outcome.planned
        else f"read in {module.outcome.seconds:.1f} s"
    )
    kept = (
        f"; {module.file}"
        if module.file
        else "; --file S.json keeps the schedule for the next run" * module.outcome.planned
    )
    aside = f"remate: in {_steps(module.aside, 'other ')}, calls ran their own forward: the schedule is not for them"
    lasting = (
        f"  {size(beside.lasting)} of gradients of the step before lasted through forward, and count in the peak:"
        "\n  call optimizer.zero_grad() before the model, not between the model and backward"
    )
    return [
        f"remate: {module.name}, {_steps(module.steps)} with a schedule that was {how}{kept}",
        *([aside] if module.aside else []),
        table(rows, right=(1, 2, 3), indent="  "),
        *([lasting] if beside.lasting and (beside.peak or 0) > predicted[1] else []),
    ]


def _steps(count: int, which: str = "") -> str:
    return f"{count} {which}step{'s' * (count != 1)}"
