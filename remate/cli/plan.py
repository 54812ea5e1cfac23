"""`remate plan`: capture a model's training step, plan it for a memory budget, and write the schedule file."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from remate_runtime.extras import require
from remate_runtime.format import Page, Split, named, range_text, ranged, sharded_text
from remate_runtime.support.plain_text import plain

from ..budget import DEFAULT_SHARE, BudgetError, parse_budget
from ..interrupts import Finishing
from ..present.outputs import gradients_of_outputs
from ..present.text import PEAK_NOTE, duration, overhead, percent, size, table
from ..profile.devices import is_estimated
from . import exit_codes
from .device_memory import (
    GRADIENTS_IN_PEAK,
    add_optimizer,
    bytes_of,
    check_optimizer,
    held,
    left_for_the_step,
    sum_text,
)
from .output import SCHEDULE, STDOUT, add_force, check_output, say, say_aside, write_output, written
from .plan_options import SPLIT, add_costs, add_energy, add_fsdp, add_search, add_target, options_from
from .plan_parts import plan_parts
from .plan_pipeline import add_pipeline, plan_pipeline
from .sizes import over_budget
from .usage import UsageError

if TYPE_CHECKING:
    from remate_runtime.format import Schedule

AT = (
    "plan parts of the model instead of the whole, by path: 'transformer.h.*'; the budget covers all their calls "
    "together; parts with different steps are written as several files into the folder -o"
)
DEVICE = (
    "move the model to this device first: cpu, cuda, cuda:1; or plan for a GPU that this machine need not have: "
    "cuda:h100, cuda:a100, cuda:t4, …"
)
DIMS = (
    "sizes that may vary: auto (the batch, where the model allows), none (default), or axes by argument and ranges "
    "by name: input_ids=b,t labels=b,t t=16..1024/8, and limits 'b*t<=4096'; - is an axis without a name"
)
FILL = (
    "inputs that apply(..., otherwise='pad') may pad at the end of each axis, and the numbers to pad with: "
    "input_ids=0 attention_mask=0 labels=-100"
)


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "plan", help="plan a model's training step and write a schedule", description=__doc__, epilog=PEAK_NOTE
    )
    parser.add_argument("target", metavar="FILE.py:build", help="function that returns (model, args[, kwargs])")
    parser.add_argument(
        "--from-script",
        action="store_true",
        help="the target is a training script: record and plan its training call; arguments of the script follow --",
    )
    parser.add_argument(
        "--module",
        metavar="CLASS",
        default="",
        help="with --from-script: class of the module to plan, if the script trains several",
    )
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--budget",
        type=budget_text,
        help="4GiB, 512MB, a share of the baseline peak: 60%%, or min; default: the knee of the curve, or 60%% with "
        "--at, pages and --cost compiled",
    )
    limit.add_argument(
        "--device-memory",
        metavar="SIZE",
        type=bytes_of,
        help="24GiB: the budget is the rest after parameters, buffers, inputs, optimizer and CUDA context",
    )
    parser.add_argument(
        "--slowdown", metavar="SHARE", help="instead of a budget: the smallest peak for this much extra time, 10%%"
    )
    add_optimizer(parser)
    parser.add_argument(
        "-o", "--output", metavar="S.json", required=True, help="the schedule file to write; - for standard output"
    )
    add_costs(parser)
    parser.set_defaults(cost=None, gpu=None)
    parser.add_argument(
        "--disk-budget",
        metavar="SIZE",
        help="64GiB: bytes that a step may page to files; enables the strategies mixed (auto), offload-only, poet, "
        "and weight-offloading, whose peak includes parameters",
    )
    parser.add_argument(
        "--host-budget", metavar="SIZE", help="bytes that a step may page to pinned memory, for a model on CUDA"
    )
    parser.add_argument(
        "--bandwidth",
        metavar="SPEED",
        default="measured",
        help="bandwidth of paging: 2GB/s, or measured (default); plans assume 85%% of it",
    )
    parser.add_argument("--split", choices=["head", "all"], help=SPLIT)
    add_energy(parser)
    add_search(parser, "limit of the search in seconds; default: none")
    parser.add_argument("--dims", metavar="SIZE", nargs="+", default=["none"], help=DIMS)
    parser.add_argument("--fill", metavar="NAME=NUMBER", nargs="+", default=[], help=FILL)
    parser.add_argument("--at", metavar="PATH", nargs="+", help=AT)
    add_fsdp(parser)
    add_pipeline(parser)
    add_target(parser, DEVICE, "name of the schedule; default: that of the file")
    parser.add_argument("--note", default="", help="a note to store in the file")
    add_force(parser)
    parser.set_defaults(run=run)


def budget_text(text: str) -> str:
    if text == "min":
        return text
    try:
        parse_budget(text)
    except BudgetError as error:
        raise argparse.ArgumentTypeError(str(error).replace("\n  hint: ", "; ")) from None
    return text


def run(args: argparse.Namespace) -> int:
    require("remate plan", "torch", "plan")
    if args.pipeline:
        return plan_pipeline(args)
    if not (args.at and (args.output.endswith("/") or Path(args.output).is_dir())):
        check_output(args.output, SCHEDULE, args.force)
    check_optimizer(args)
    from remate_runtime.format import checked_text

    from ..api.goals import goal_of, plan_for_goal
    from ..profile.costing import COMPILED
    from .device import check_trains, from_script, loaded, split_device, tell_doubts
    from .progress import Reporter

    gpu = split_device(args)
    fixed = args.at or args.cost == COMPILED or args.disk_budget or args.host_budget or args.split
    default = args.budget is None and args.slowdown is None and bool(fixed)
    if default and not args.device_memory:
        args.budget = DEFAULT_SHARE
    goal = None if args.device_memory else goal_of(args.budget, args.slowdown)
    if goal and (args.at or args.cost == COMPILED):
        raise UsageError("--at and --cost compiled need a budget\n  hint: add --budget 60%")
    target = from_script(args) if args.from_script else loaded(args.target, args.device, args.threads, args.quiet)
    check_trains(target, args.target, args.evaluation)
    tell_doubts(args, gpu, target)
    from ..api.plan import plan_step, prepare
    from ..api.settings import refuse_paging, settings_of
    from ..api.sharding import check_sharding
    from ..api.splitting import narrowed_sizes
    from ..api.tried_parts import proposing_what_works
    from ..api.untrained import checked_fill
    from ..dims.batch_of_one import about_batch_of_one
    from ..dims.open_sizes import OpenSizes
    from ..profile.costing import operator_costs
    from .dims import dims_of
    from .fill import fill_of

    fill = fill_of(args.fill)
    options = options_from(args)
    dims = None if args.dims == ["none"] else args.dims
    check_sharding(replace(options, at=args.at, dims=dims), args.cost, command=True)
    settings = settings_of(options, "" if goal else args.budget or "")
    if args.at or goal or args.cost == COMPILED:
        refuse_paging(settings, "--at, --cost compiled, --budget min and --slowdown do not support paging")
    if args.at:
        plan_parts(args, target, settings, options, gpu, or_smallest=default)
        return exit_codes.FINE
    name = args.name or (type(target.model).__name__ if args.output == STDOUT else Path(args.output).stem)
    with Reporter(args.quiet) as report, proposing_what_works(target.call, options, gpu):
        largest = not goal and not (args.budget or "").strip().endswith("%")
        sizes, cost = OpenSizes(dims_of(args.dims), largest), operator_costs(args.cost)
        step = prepare(target.call, cost=cost, options=options, open_sizes=sizes, gpu=gpu, progress=report)
        fill = checked_fill(fill, step.captured.model)
        weights = args.strategy == "weight-offloading"
        residents = held(args, step.captured.model, args.gradients, weights) if args.device_memory else ()
        if args.device_memory:
            settings = replace(settings, budget=str(left_for_the_step(args, residents)))
        with Finishing():
            search: dict[str, Any] = {"name": name, "note": args.note, "progress": report}
            if goal:
                schedule = plan_for_goal(
                    step, settings, args.cost, goal, say_aside if not args.quiet else report, **search
                )
            else:
                schedule = plan_step(step, settings, args.cost, **search)
            schedule = replace(schedule, model=replace(schedule.model, fill=fill))
            text = checked_text(schedule)
            write_output(args.output, text, rescue=True)
    if args.device_memory and not args.quiet:
        left = schedule.solve.budget
        remark = f"its {GRADIENTS_IN_PEAK[args.gradients]} included"
        say(sum_text(args.device_memory, residents, "budget of the step", left, remark) + "\n", args.output)
    if not args.quiet:
        say(summary(schedule, args.output, len(text)), args.output)
        for line in over_budget(schedule, args.output):
            say(plain(f"note: {line}"), args.output)
        for line in (*step.sized.said, *narrowed_sizes(schedule, step)) if step.sized else ():
            say(plain(f"note: {line}"), args.output)
        call = target.call
        if note := about_batch_of_one(schedule, dims_of(args.dims), call.model, call.args, call.kwargs):
            say(plain(f"note: {note}"), args.output)
        if args.output != STDOUT:
            model = shlex.quote(args.target)
            path = shlex.quote(args.output)
            run = f"train --file {path}" if args.from_script else f"run {path} --model"
            say(f"next: remate {run} {model}   # train with it{'' if args.from_script else ', beside eager'}")
    return exit_codes.FINE


def summary(schedule: Schedule, path: str, nbytes: int) -> str:
    """The figures of a plan, in a few lines."""
    from ..schedule_tools.figures import proven_schedule

    solve = schedule.solve
    rows = [
        ("peak", size(solve.peak), f"of a budget of {size(solve.budget)}; {_baseline(schedule)}"),
        (
            "time",
            duration(solve.time),
            f"{overhead(solve.time, solve.baseline_time, 'no cost')} over the baseline ({solve.cost})",
        ),
    ]
    if solve.compiled is not None and solve.compiled.peak is not None:
        compiled = solve.compiled
        rows.append(("compiled", size(solve.compiled.peak), f"predicted, of a budget of {size(compiled.budget)}"))
    if paged := sum(len(named(page)) for page in schedule.statements if isinstance(page, Page)):
        rows.append(("paged", f"{paged:,}", "values leave the device, `remate show` lists them"))
    rows += [("split", f"{split.into}x", f"{len(split.split)} operations run in tiles") for split in _splits(schedule)]
    if solve.lower_bound is not None:
        over = overhead(solve.lower_bound, solve.baseline_time, "no cost")
        costs = " of estimated costs" * is_estimated(solve.cost)
        step = "the step with these splits" if _splits(schedule) else "this step"
        kind = proven_schedule(solve.settings)
        rows.append(("bound", duration(solve.lower_bound), f"{over}: proven{costs}, no {kind} of {step} is faster"))
    if solve.gap is not None:
        rows.append(("gap", percent(solve.gap), "between time and bound, in baseline time"))
    if (sharded := schedule.model.sharded) is not None:
        rows.append(("sharded", f"{sharded.shards}x", f"by FSDP2: {sharded_text(sharded)}"))
    rows += [("live", name, range_text(live)) for name, live in schedule.model.live.items()]
    rows += [("pad", name, f"with {number!r}") for name, number in schedule.model.fill.items()]
    rows += [("size", name, f"{ranged(dim)}, planned at {dim.planned}") for name, dim in schedule.model.dims.items()]
    rows += [("limit", text, f"up to {most}") for text, most in schedule.model.limits.items()]
    solved = f"solved by {solve.strategy} ({solve.solver}), stopped by {solve.stopped_by}"
    outputs = gradients_of_outputs(schedule.model)
    return "\n".join([table(rows, right=(1,)), outputs, solved, written(path, f", {size(nbytes)}")])


def _splits(schedule: Schedule) -> list[Split]:
    return [statement for statement in schedule.statements if isinstance(statement, Split)]


def _baseline(schedule: Schedule) -> str:
    """The peak of the baseline. It includes parameters if they are paged."""
    from ..schedule_tools.device_memory import parameter_bytes_of

    peak = schedule.solve.baseline_peak

    if schedule.solve.strategy != "weight-offloading":
        return f"baseline {size(peak)}"
    return f"with parameters; baseline {size(peak + parameter_bytes_of(schedule.model))}"
