"""`remate replan`: plan the model of a schedule again, with the budget, costs and settings that the file holds.

The file is written in place, or to -o. Its name and its notes are kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require

from ..interrupts import Finishing
from ..present.text import PEAK_NOTE, plain
from . import exit_codes
from .output import SCHEDULE, add_force, check_output, say, say_aside, write_output
from .plan import summary
from .plan_options import add_costs, options_from

if TYPE_CHECKING:
    from remate_runtime.format import Schedule

    from .build_file import Target


def configure(commands: Any) -> None:
    add_again(commands, "replan", "plan a schedule's model again, as it is now", __doc__, run)


def add_again(
    commands: Any, name: str, brief: str, about: str | None, run: Callable[[argparse.Namespace], int]
) -> None:
    """A command that brings a schedule to the model as it is now."""
    parser = commands.add_parser(
        name,
        help=brief,
        description=about,
        epilog=PEAK_NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("schedule", metavar="S.json", help="the schedule")
    parser.add_argument(
        "--model", metavar="FILE.py:build", required=True, help="function that returns (model, args[, kwargs])"
    )
    parser.add_argument("-o", "--output", metavar="NEW.json", help="write there; default: in place; - standard output")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; default: the schedule's device class")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    add_force(parser)
    add_costs(parser, None)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate replan", "torch", "plan")
    output = args.output or args.schedule
    check_output(output, SCHEDULE, args.force)
    from remate_runtime.format import checked_text, load

    schedule = load(args.schedule)
    target = load_model(args, schedule)
    from ..api.replan import prepare_again, replan
    from .progress import Reporter

    with Reporter(args.quiet) as report:
        step = prepare_again(schedule, target.call, cost=args.cost, options=options_from(args), progress=report)
        with Finishing():
            made, lost = replan(schedule, step, args.cost, report)
            text = checked_text(made)
            write_output(output, text, rescue=True)
    tell_lost(lost)
    if not args.quiet:
        say("\n".join([*compared(schedule, made), summary(made, output, len(text))]), output)
    return exit_codes.FINE


def load_model(args: argparse.Namespace, schedule: Schedule) -> Target:
    """What `FILE.py:build` makes, on the schedule's class of device, unless another one is requested."""
    from ..api.elsewhere import gpu_of_file
    from .build_file import load_target
    from .device import placed

    target = load_target(args.model)
    if args.device is None and gpu_of_file(schedule) is not None:
        return target
    there = next((p.device.type for p in target.model.parameters()), schedule.model.device)
    return placed(target, args.device or (None if there == schedule.model.device else schedule.model.device))


def tell_lost(notes: tuple[str, ...]) -> None:
    for note in notes:
        say_aside(f"warning: a note stood on what is no more: {plain(note)}")


def compared(old: Schedule, new: Schedule) -> list[str]:
    """What a person wants to know first: whether anything changed, and whether it is for other costs."""
    if old == new:
        return ["the schedule is as it was"]
    before, after = old.solve.profile, new.solve.profile
    if before and after and before != after and old.model.fingerprint == new.model.fingerprint:
        return ["the step is the one that was planned; its costs are not (other measurements, see --profile)"]
    return []
