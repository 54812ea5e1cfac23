"""`remate fit`: find the largest batch that a device can train, plan it, and list the throughput of each batch size."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require

from ..present.text import PEAK_NOTE, overhead, percent, size, table
from . import exit_codes
from .device_memory import add_optimizer, bytes_of, check_optimizer
from .fit_layouts import add_layouts, fit_layouts, wants_layouts
from .output import PLOT, SCHEDULE, STDOUT, add_force, check_output, say, write_output, written
from .plan import DEVICE, DIMS
from .plan_options import add_costs, add_search, add_target, options_from
from .usage import UsageError

SPLIT_SIZES = "permit splits, as in remate plan; the largest batch may then be larger"

if TYPE_CHECKING:
    from ..api.fit import Fit


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "fit", help="the largest batch for a device, and the fastest", description=__doc__, epilog=PEAK_NOTE
    )
    parser.add_argument("target", metavar="FILE.py:build", help="function that returns (model, args[, kwargs])")
    parser.add_argument(
        "--device-memory", metavar="SIZE", type=bytes_of, required=True, help="all memory of the device: 80GiB"
    )
    add_optimizer(parser)
    parser.add_argument(
        "--dims", metavar="SIZE", nargs="+", default=["auto"], help=f"the first named size varies; {DIMS}"
    )
    parser.add_argument(
        "-o", "--output", metavar="S.json", help="file for the schedule of the largest batch; - for standard output"
    )
    parser.add_argument("--plot", metavar="F.svg", help="draw samples per second over the batch size")
    add_costs(parser)
    parser.set_defaults(cost=None, gpu=None)
    parser.add_argument("--split", choices=["head", "all"], help=SPLIT_SIZES)
    add_search(parser, "limit of all searches together in seconds; default: none")
    add_target(parser, DEVICE, "name of the schedule; default: that of the file")
    add_force(parser)
    add_layouts(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate fit", "torch", "plan")
    if args.output:
        check_output(args.output, SCHEDULE, args.force)
    if args.plot == STDOUT:
        raise UsageError("--plot needs a file\n  hint: --plot fit.svg")
    if args.plot:
        check_output(args.plot, PLOT, args.force)
    check_optimizer(args)
    from remate_runtime.format import checked_text

    from .device import check_trains, loaded, split_device
    from .dims import dims_of
    from .progress import Reporter

    layouts, asked = wants_layouts(args), args.cost
    split_device(args)
    device: dict[str, Any] = {key: getattr(args, key) for key in ("device_memory", "cuda_context")}
    device["cost"] = asked if layouts else args.cost
    device["optimizer"] = args.optimizer if args.optimizer_bytes is None else args.optimizer_bytes
    device["reserve"] = args.reserve or 0
    device["device"] = args.gpu
    if layouts:
        return fit_layouts(args, device)
    target = loaded(args.target, args.device, args.threads, args.quiet)
    check_trains(target, args.target, args.evaluation)
    from msgspec.structs import replace

    from ..api.fit import fit
    from ..api.options import FrontierKeywords

    name = args.name or (Path(args.output).stem if args.output and args.output != STDOUT else "")
    with Reporter(args.quiet) as report:
        options = replace(options_from(args), dims=dims_of(args.dims), name=name, progress=report)
        result = fit(target.call, **device, **{key: getattr(options, key) for key in FrontierKeywords.__annotations__})
        text = checked_text(result.schedule)
        if args.output:
            write_output(args.output, text, rescue=True)
    if args.plot:
        write_output(args.plot, _plot(result).encode())
    if not args.quiet:
        files = [written(path) for path in (args.output, args.plot) if path]
        say("\n".join([summary(result), *files]), args.output or "")
    return exit_codes.FINE


def summary(result: Fit) -> str:
    """A table with a row per batch size, and a verdict on the largest and the fastest."""
    rows = [(result.dim, "baseline peak", "budget", "planned peak", "extra time", "samples/s", "")]
    for batch in result.batches:
        marks = [*(["fastest"] if batch == result.fastest else []), *(["largest"] if batch == result.largest else [])]
        peak, extra = ("none", "") if batch.peak is None or batch.time is None else (size(batch.peak), _extra(batch))
        rate = f"{batch.per_second:,.4g}" if batch.time is not None else ""
        rows.append((str(batch.size), size(batch.baseline_peak), size(batch.left), peak, extra, rate, ", ".join(marks)))
    largest, fastest = result.largest, result.fastest
    verdict = f"the largest batch that fits {size(result.device_memory)} is {result.dim}={largest.size}"
    if fastest.size != largest.size:
        gain = fastest.per_second / largest.per_second - 1
        how = "without recomputation" if fastest.keeps_all else "with fewer recomputations"
        verdict += f"; {result.dim}={fastest.size}, {how}, gives {percent(gain)} more samples per second"
    costs = f"times: {result.schedule.solve.cost} costs, for each size"
    early = (
        [] if result.complete else [f"the search ended early: a larger {result.dim} may fit, and sizes may be missing"]
    )
    return "\n".join([table(rows, right=(0, 1, 2, 3, 4, 5)), costs, verdict, *early])


def _extra(batch: Any) -> str:
    return overhead(batch.time, batch.baseline_time, "no cost")


def _plot(result: Fit) -> str:
    from ..present.fit_plot import fit_plot

    kept = [(batch.size, batch.per_second) for batch in result.batches if batch.keeps_all and batch.time is not None]
    recompute = [
        (batch.size, batch.per_second) for batch in result.batches if not batch.keeps_all and batch.time is not None
    ]
    ideal = [(batch.size, batch.size / max(1, batch.baseline_time) * 1e9) for batch in result.batches]
    schedule = result.schedule
    return fit_plot(schedule.name, result.dim, schedule.solve.cost, kept, recompute, ideal)
