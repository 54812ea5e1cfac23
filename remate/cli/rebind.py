"""`remate rebind`: transfer the plans of a schedule to the current model, without solving.

Use it after a module is renamed, or for another batch size or version of torch. Blocks of the same structure keep their
plans, figures are computed again, and lost decisions are reported. `remate replan` solves instead.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from remate_runtime.errors import RemateError
from remate_runtime.extras import require

from ..present.text import count, overhead, percent, plain, size
from . import exit_codes
from .output import SCHEDULE, check_output, say, say_aside, write_output, written
from .plan_options import options_from
from .replan import add_again, load_model
from .usage import replan_command

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis
    from ..schedule_tools.carry import Carried


def configure(commands: object) -> None:
    add_again(commands, "rebind", "transfer a schedule's plans to the current model", __doc__, run)


def run(args: argparse.Namespace) -> int:
    require("remate rebind", "torch", "plan")
    output = args.output or args.schedule
    check_output(output, SCHEDULE, args.force)
    from remate_runtime.format import checked_text, load

    schedule = load(args.schedule)
    target = load_model(args, schedule)
    from ..api.rebind import rebind
    from ..api.replan import prepare_again
    from ..schedule_tools.analysis import analyse
    from .progress import Reporter

    with Reporter(args.quiet) as report:
        step = prepare_again(schedule, target.call, cost=args.cost, options=options_from(args), progress=report)
        carried = rebind(schedule, step, args.cost)
    if not carried.instances[0]:
        hint = replan_command(args.schedule, args.model)
        raise RemateError(f"the model has no block of {args.schedule}: no plan can be transferred\n  hint: {hint}")
    text = checked_text(carried.schedule)
    write_output(output, text)
    for line in carried.left_out:
        say_aside(f"left out: {plain(line)}")
    opened = analyse(carried.schedule)
    if not args.quiet:
        say("\n".join([_summary(opened, carried), written(output, f", {size(len(text))}")]), output)
    over = opened.timeline.peak - carried.schedule.solve.budget
    if over > 0:
        say_aside(
            f"warning: the peak is {size(over)} over the budget of {size(carried.schedule.solve.budget)}\n"
            f"hint: {replan_command(output, args.model)}"
        )
    return exit_codes.FINDINGS if over > 0 else exit_codes.FINE


def _summary(opened: Analysis, carried: Carried) -> str:
    planned, base = opened.timeline, opened.baseline
    matched, total = carried.instances
    share = f" ({percent(planned.peak / base.peak, 1)} of the baseline)" if base.peak else ""
    time = f", time {overhead(planned.time, base.time)} over the baseline" if base.time else ""
    recomputes = count(len(opened.expanded.recomputes), "recompute")
    lost = f"; {count(len(carried.left_out), 'decision')} left out" if carried.left_out else ", nothing left out"
    summary = f"transferred: {matched} of {count(total, 'instance')}, {recomputes}{lost}"
    return f"{summary}\npeak {size(planned.peak)}{share}{time}"
