"""`remate frontier`: plan a step for many budgets, and write the schedules, a table, and a plot of time over memory."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require
from remate_runtime.support.files import check_writable, write_atomically

from ..budget import BudgetError
from ..interrupts import Finishing
from ..present.frontier_summary import SUMMARY, BudgetPoint, Summary, file_name, parse_budgets
from ..present.text import PEAK_NOTE
from . import exit_codes, output
from .output import say
from .plan import DEVICE, DIMS
from .plan_options import add_costs, add_search, add_target, options_from
from .usage import UsageError

SPLIT_BUDGETS = "permit splits, as in remate plan; each budget gets the fastest number of tiles"
_TABLE, _PLOT = "frontier.txt", "frontier.svg"

if TYPE_CHECKING:
    from remate_runtime.format import Settings

    from ..api.frontier import Sweep
    from ..api.split_goals import SplitSweep
    from ..budget import RequestedBudget
    from ..strategy import Solution


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "frontier", help="plan for many budgets: schedules, table and plot", description=__doc__, epilog=PEAK_NOTE
    )
    parser.add_argument("target", metavar="FILE.py:build", help="function that returns (model, args[, kwargs])")
    parser.add_argument(
        "--budgets", default="20%..100%", help="20%%..100%%, 4GiB..8GiB, or a list 40%%,60%%,4GiB; default 20%%..100%%"
    )
    parser.add_argument("--steps", metavar="N", type=_steps, default=9, help="budgets in a range, default 9")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write to; created if missing")
    add_costs(parser)
    parser.set_defaults(cost=None, gpu=None)
    add_search(parser, "limit of the search for each budget in seconds; default: none")
    parser.add_argument("--dims", metavar="SIZE", nargs="+", default=["none"], help=DIMS)
    parser.add_argument("--split", choices=["head", "all"], help=SPLIT_BUDGETS)
    parser.add_argument("--no-plot", action="store_true", help="do not draw frontier.svg")
    add_target(parser, DEVICE, "name of the schedules; default: that of the folder")
    output.add_force(parser)
    parser.set_defaults(run=run)


def _steps(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 2 to 1000")
    return int(text)


def run(args: argparse.Namespace) -> int:
    require("remate frontier", "torch", "plan")
    try:
        budgets = parse_budgets(args.budgets, args.steps)
    except BudgetError as error:
        raise UsageError(str(error)) from None
    folder = Path(args.output)
    _folder(folder, budgets, args.force)
    from .device import check_trains, loaded, split_device, tell_doubts
    from .progress import Reporter

    gpu = split_device(args)
    target = loaded(args.target, args.device, args.threads, args.quiet)
    check_trains(target, args.target, args.evaluation)
    tell_doubts(args, gpu, target)
    from ..api.plan import prepare
    from ..api.settings import settings_of
    from ..api.split_goals import sweep_of
    from ..api.tried_parts import proposing_what_works
    from ..dims.open_sizes import OpenSizes
    from .dims import dims_of

    options = options_from(args)
    settings = settings_of(options)
    with Reporter(args.quiet) as report, proposing_what_works(target.call, options, gpu):
        largest = not any(budget.strip().endswith("%") for budget in budgets)
        sizes = OpenSizes(dims_of(args.dims), largest)
        step = prepare(target.call, cost=args.cost, options=options, open_sizes=sizes, gpu=gpu, progress=report)
        sweep = sweep_of(step, settings, args.cost, budgets, report)
        folder.mkdir(exist_ok=True)
        with Finishing() as finishing:
            named = args.name or folder.resolve().name
            summary = _solve(sweep, budgets, folder, args.cost, named, settings, finishing)
            image = _write_summary(summary, folder, not args.no_plot)
    if not args.quiet:
        solved = sum(point.file is not None for point in summary.points)
        say(summary.text())
        say(f"wrote {solved} schedule{'' if solved == 1 else 's'}, frontier.txt, frontier.json{image} to {folder}")
        files = [point.file for point in summary.points if point.file]
        if files:
            path, where = shlex.quote(str(folder / files[0])), shlex.quote(str(folder))
            say(f"next: remate report {path} --frontier {where} -o report.html   # a page with all of them")
    if not summary.complete:
        return exit_codes.INTERRUPTED
    return exit_codes.FINE if sweep.by_budget else exit_codes.FINDINGS


def _folder(folder: Path, budgets: list[str], force: bool) -> None:
    """Check that all output files can be written. Raises UsageError, OSError."""
    if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()) or str(folder) == output.STDOUT:
        raise UsageError(f"{folder}: cannot create a folder here\n  hint: -o names the folder to write to")
    kinds = {file_name(budget): output.SCHEDULE for budget in budgets}
    kinds |= {SUMMARY: output.SUMMARY, _TABLE: output.TABLE, _PLOT: output.PLOT}
    if folder.exists():
        for name, kind in kinds.items():
            output.check_output(str(folder / name), kind, force)
    else:
        check_writable(folder)


def _write_summary(summary: Summary, folder: Path, plot: bool) -> str:
    """Write table and plot, and return the words about the plot."""
    write_atomically(folder / SUMMARY, summary.encode())
    write_atomically(folder / _TABLE, (summary.text() + "\n").encode())
    if not plot:
        return ""
    from ..present.frontier_plot import frontier_plot

    write_atomically(folder / _PLOT, frontier_plot(summary).encode())
    return f", {_PLOT}"


def _solve(
    sweep: Sweep | SplitSweep,
    budgets: list[str],
    folder: Path,
    cost: str,
    name: str,
    settings: Settings,
    finishing: Finishing,
) -> Summary:
    """Solve every budget, the smallest first, and write each schedule when it is solved.

    Ctrl-C ends the current solve and starts no other. A second Ctrl-C ends the command.
    """
    from msgspec.structs import replace

    from ..api.frontier import requested_of
    from ..api.writing import schedule_of

    requested = requested_of(budgets, sweep.baseline_peak)
    written: dict[int, Solution] = {}
    tried = 0

    def write(request: RequestedBudget, solution: Solution, path: Path) -> None:
        about: dict[str, Any] = {"name": name, "settings": replace(settings, budget=request.text)}
        about["tiled"] = sweep.tiled(request.budget)
        schedule_of(sweep.step, solution, request.budget, cost, **about).save(str(path))

    try:
        for request in requested:
            if sweep.interrupted or finishing.pressed:
                break
            solution = sweep.solve(request.budget, request.text)
            if solution is not None:
                write(request, solution, folder / file_name(request.text))
                written[request.budget] = solution
            tried += 1
    except KeyboardInterrupt:  # no plan for this budget yet
        sweep.by_budget = {budget: s for budget, s in sweep.by_budget.items() if budget in written}
    final = sweep.solutions()
    points: list[BudgetPoint] = []
    for request in requested[:tried]:
        solution, path = final.get(request.budget), folder / file_name(request.text)
        if solution is None:
            points.append(BudgetPoint(request.text, request.budget))
            continue
        if solution != written[request.budget]:  # the solve of another budget improved the schedule or the bound
            write(request, solution, path)
        points.append(_point(request.text, request.budget, path.name, solution))
    return Summary(
        "remate.frontier",
        1,
        name,
        cost,
        sweep.baseline_peak,
        sweep.baseline_time,
        sweep.floor,
        sweep.smallest,
        tried == len(requested) and not (sweep.interrupted or finishing.pressed),
        tuple(points),
    )


def _point(requested: str, budget: int, file: str, s: Solution) -> BudgetPoint:
    recomputes = len(s.recomputes)
    return BudgetPoint(
        requested, budget, file, s.peak, s.time, s.lower_bound, s.gap, s.stopped_by, s.strategy, recomputes
    )
