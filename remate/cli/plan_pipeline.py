"""`remate plan --pipeline`: a schedule for each stage of a pipeline, written into a folder."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..interrupts import Finishing
from ..present.text import duration, overhead, percent, plain, size, table
from . import exit_codes
from .output import SCHEDULE, STDOUT, check_output, say, write_output
from .usage import UsageError

if TYPE_CHECKING:
    from ..pipelines.plan import PipelinePlan

_NOT_WITH = (
    "at",
    "device_memory",
    "slowdown",
    "disk_budget",
    "host_budget",
    "from_script",
    "fill",
    "split",
    "keep_gathered",
)


def add_pipeline(parser: argparse.ArgumentParser) -> None:
    """Add the options of pipelines."""
    parser.add_argument(
        "--pipeline",
        metavar="SCHEDULE",
        help="plan the stages of a pipeline: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, "
        "ZBVZeroBubble, DualPipeV; the target returns a list of stages, or (stages, loss_fn, target); the budget is "
        "that of each rank, and -o is a folder",
    )
    parser.add_argument("--microbatches", metavar="N", type=int, help="with --pipeline: microbatches of a step")
    parser.add_argument(
        "--stages", metavar="N", type=int, help="with --pipeline: number of stages; the target is build(stage, stages)"
    )
    parser.add_argument(
        "--ranks", metavar="N", type=int, help="with --pipeline: number of ranks; default: one or two stages on each"
    )


def plan_pipeline(args: argparse.Namespace) -> int:
    """Plan the stages of a pipeline and write their files."""
    _check(args)
    from remate_runtime.format import checked_text

    from ..api.pipeline import plan_pipeline as planned
    from ..api.sharding import check_sharding
    from .build_file import load_stages
    from .device import check_trains, placed, split_device
    from .plan_options import options_from
    from .progress import Reporter

    split_device(args)
    options = options_from(args)
    check_sharding(options, args.cost, command=True)
    with Reporter(args.quiet) as report:
        report(f"running {args.target}")
        targets, loss = load_stages(args.target, args.stages)
        targets = [placed(target, args.device, args.threads) for target in targets]
        for at, target in enumerate(targets):
            check_trains(target, f"{args.target}, stage {at}", args.evaluation)
        label = args.name or "stage"
        folder = Path(args.output)
        paths = [str(folder / f"{label}{at}.json") for at in range(len(targets))]
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            check_output(path, SCHEDULE, args.force)
        search = {name: getattr(options, name) for name in ("profile", "cache", "measure_again", "time_limit", "gap")}
        search |= {name: getattr(options, name) for name in ("strategy", "effort", "differentiate", "gradients")}
        with Finishing():
            plan = planned(
                [target.call for target in targets],
                args.pipeline,
                args.microbatches,
                args.budget,
                args.cost,
                ranks=args.ranks,
                loss=loss,
                device=options.device,
                fsdp=options.fsdp,
                shards=options.shards,
                name=label,
                note=args.note,
                live=options.live,
                progress=report,
                **search,
            )
            for path, schedule in zip(paths, plan, strict=True):
                write_output(path, checked_text(schedule), rescue=True)
    if not args.quiet:
        say(summary(plan, paths), args.output)
        first = shlex.quote(paths[0])
        say(f"next: remate_runtime.apply(stage, {first}) on its rank, then PipelineStage(...)", args.output)
    return exit_codes.FINE


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go with --pipeline."""
    for name in _NOT_WITH:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --pipeline\n  hint: leave out one of them")
    if args.keep_gathered is not None:
        raise UsageError(
            "under --pipeline, parameters stay gathered for all microbatches\n  hint: leave out --keep-gathered"
        )
    if args.dims != ["none"]:
        raise UsageError("the microbatches of a pipeline have one size\n  hint: leave out --dims")
    if not args.microbatches or args.microbatches < 1:
        raise UsageError("--pipeline needs the number of microbatches\n  hint: --microbatches 8")
    if args.output == STDOUT or (Path(args.output).exists() and not Path(args.output).is_dir()):
        raise UsageError("a pipeline has a file for each stage\n  hint: name a folder: -o stages/")


def summary(plan: PipelinePlan, paths: list[str]) -> str:
    """Return the figures of a pipeline: stages, ranks, and the time of a step."""
    rows = [("file", "rank", "in flight", "time of a microbatch", "over its baseline")]
    rank_of = {stage: rank.rank for rank in plan.ranks for stage in rank.stages}
    for stage, (path, schedule) in enumerate(zip(paths, plan, strict=True)):
        solve = schedule.solve
        more = overhead(solve.time, solve.baseline_time, "no cost")
        rows.append((plain(path), str(rank_of[stage]), str(plan.in_flight[stage]), duration(solve.time), more))
    ranks = [("rank", "peak", "without recomputation")]
    ranks += [(str(rank.rank), size(rank.peak), size(rank.baseline_peak)) for rank in plan.ranks]
    bound = overhead(plan.lower_bound, plan.baseline_time, "no cost")
    step = [
        ("budget", size(plan.budget), "of each rank, with torch's buffers, outputs and gradients"),
        ("time", duration(plan.time), f"{overhead(plan.time, plan.baseline_time, 'no cost')} over the baseline"),
        ("bound", duration(plan.lower_bound), f"{bound}: proven for the costs, no plans of the stages are faster"),
        ("gap", percent(plan.gap), "between time and bound, in baseline time"),
    ]
    head = f"{plan.schedule}, {plan.microbatches} microbatches, {len(plan)} stages on {len(plan.ranks)} ranks"
    return "\n\n".join([head, table(rows, right=(1, 2, 3)), table(ranks, right=(1, 2)), table(step, right=(1,))])
