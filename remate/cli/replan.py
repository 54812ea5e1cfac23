"""`remate replan`: plan the current model with the budget, costs and settings of a schedule file.

The file is replaced, or the result is written to -o. Name and notes are kept.
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


def configure(commands: object) -> None:
    add_again(commands, "replan", "plan again for the current model", __doc__, run)


def add_again(
    commands: Any, name: str, brief: str, about: str | None, run: Callable[[argparse.Namespace], int]
) -> None:
    """Add a command that updates a schedule for the current model."""
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
    parser.add_argument(
        "-o", "--output", metavar="NEW.json", help="file to write; default: S.json itself; - for standard output"
    )
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
            replanned, lost = replan(schedule, step, args.cost, report)
            text = checked_text(replanned)
            write_output(output, text, rescue=True)
    tell_lost(lost)
    if not args.quiet:
        say("\n".join([*compared(schedule, replanned), summary(replanned, output, len(text))]), output)
    return exit_codes.FINE


def load_model(args: argparse.Namespace, schedule: Schedule) -> Target:
    """Load `FILE.py:build` and move its model to `--device`, or to the class of device of the schedule."""
    from ..api.elsewhere import gpu_of_file
    from .build_file import load_target
    from .device import placed

    target = load_target(args.model)
    if args.device is None and gpu_of_file(schedule) is not None:
        return target
    device = next((p.device.type for p in target.model.parameters()), schedule.model.device)
    return placed(target, args.device or (None if device == schedule.model.device else schedule.model.device))


def tell_lost(notes: tuple[str, ...]) -> None:
    for note in notes:
        say_aside(f"warning: this note belonged to something that no longer exists: {plain(note)}")


def compared(old: Schedule, new: Schedule) -> list[str]:
    """Whether the schedule is unchanged, or only its costs differ."""
    if old == new:
        return ["the schedule is unchanged"]
    before, after = old.solve.profile, new.solve.profile
    if before and after and before != after and old.model.fingerprint == new.model.fingerprint:
        return ["the step is the same; its costs were measured again (see --profile)"]
    return []
