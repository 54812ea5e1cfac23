"""`remate fit`: the largest batch whose training fits a device, its schedule, and what each batch gives in a second."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require

from ..present.text import PEAK_NOTE, overhead, percent, size, table
from . import exit_codes
from .device_memory import add_optimizer, bytes_of, check_optimizer
from .output import PLOT, SCHEDULE, STDOUT, add_force, check_output, say, write_output, written
from .plan import DEVICE, DIMS
from .plan_options import add_costs, add_search, add_target, options_from
from .usage import UsageError

if TYPE_CHECKING:
    from ..api.fit import Fit


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "fit", help="the largest batch for a device, and the fastest", description=__doc__, epilog=PEAK_NOTE
    )
    parser.add_argument("target", metavar="FILE.py:build", help="function that returns (model, args[, kwargs])")
    parser.add_argument(
        "--device-memory", metavar="SIZE", type=bytes_of, required=True, help="all that the device has: 80GiB"
    )
    add_optimizer(parser)
    parser.add_argument("--dims", metavar="SIZE", nargs="+", default=["auto"], help=f"the first is varied; {DIMS}")
    parser.add_argument(
        "-o", "--output", metavar="S.json", help="write the schedule of the largest; - for standard output"
    )
    parser.add_argument("--plot", metavar="F.svg", help="draw samples in a second over the size of the batch")
    add_costs(parser)
    parser.set_defaults(cost=None, gpu=None)
    add_search(parser)
    add_target(parser, DEVICE, "name of the schedule; default: that of the file")
    add_force(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate fit", "torch", "plan")
    if args.output:
        check_output(args.output, SCHEDULE, args.force)
    if args.plot == STDOUT:
        raise UsageError("the plot goes into a file\n  hint: --plot fit.svg")
    if args.plot:
        check_output(args.plot, PLOT, args.force)
    check_optimizer(args)
    from remate_runtime.format import checked_text

    from .device import check_trains, loaded, split_device
    from .dims import dims_of
    from .progress import Reporter

    split_device(args)
    target = loaded(args.target, args.device, args.threads, args.quiet)
    check_trains(target, args.target, args.evaluation)
    from msgspec.structs import replace

    from ..api.fit import fit
    from ..api.options import SearchKeywords

    name = args.name or (Path(args.output).stem if args.output and args.output != STDOUT else "")
    device: dict[str, Any] = {key: getattr(args, key) for key in ("device_memory", "cuda_context", "cost")}
    device["optimizer"] = args.optimizer if args.optimizer_bytes is None else args.optimizer_bytes
    device["reserve"] = args.reserve or 0
    device["device"] = args.gpu
    with Reporter(args.quiet) as report:
        options = replace(options_from(args), dims=dims_of(args.dims), name=name, progress=report)
        found = fit(target.call, **device, **{key: getattr(options, key) for key in SearchKeywords.__annotations__})
        text = checked_text(found.schedule)
        if args.output:
            write_output(args.output, text, rescue=True)
    if args.plot:
        write_output(args.plot, _plot(found).encode())
    if not args.quiet:
        told = [written(path) for path in (args.output, args.plot) if path]
        say("\n".join([summary(found), *told]), args.output or "")
    return exit_codes.FINE


def summary(found: Fit) -> str:
    """A line for each size, and which is the largest and the fastest."""
    rows = [(found.dim, "without recomputation", "left for it", "with the plan", "extra time", "samples/s", "")]
    for one in found.batches:
        marks = [*(["fastest"] if one == found.fastest else []), *(["largest"] if one == found.largest else [])]
        peak, extra = ("none", "") if one.peak is None or one.time is None else (size(one.peak), _extra(one))
        rate = f"{one.per_second:,.4g}" if one.time is not None else ""
        rows.append((str(one.size), size(one.baseline_peak), size(one.left), peak, extra, rate, ", ".join(marks)))
    largest, fastest = found.largest, found.fastest
    verdict = f"the largest batch that fits {size(found.device_memory)} is {found.dim}={largest.size}"
    if fastest.size != largest.size:
        gain = fastest.per_second / largest.per_second - 1
        how = "without recomputation" if fastest.keeps_all else "with fewer recomputations"
        verdict += f"; {found.dim}={fastest.size}, {how}, gives {percent(gain)} more samples in a second"
    costs = f"times: {found.schedule.solve.cost} costs, of each size individually"
    return "\n".join([table(rows, right=(0, 1, 2, 3, 4, 5)), costs, verdict])


def _extra(one: Any) -> str:
    return overhead(one.time, one.baseline_time, "no cost")


def _plot(found: Fit) -> str:
    from ..present.fit_plot import fit_plot

    kept = [(one.size, one.per_second) for one in found.batches if one.keeps_all and one.time is not None]
    recompute = [(one.size, one.per_second) for one in found.batches if not one.keeps_all and one.time is not None]
    ideal = [(one.size, one.size / max(1, one.baseline_time) * 1e9) for one in found.batches]
    schedule = found.schedule
    return fit_plot(schedule.name, found.dim, schedule.solve.cost, kept, recompute, ideal)
