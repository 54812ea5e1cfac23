"""`remate edit`: change decisions of a schedule file without opening it, and see what that does to peak and time.

The lines written are those that a person would write. Results stay what they were whatever is edited: keeping and
recomputing change memory and time, never a gradient. Edits are made in this order: --plan, --keep, --recompute.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..present.text import size
from . import exit_codes
from .output import SCHEDULE, add_force, check_output, say, write_output, written
from .usage import UsageError

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis
    from ..schedule_tools.edit import Editor


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "edit",
        help="keep, recompute, or choose a plan, without opening the file",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("schedule", metavar="S.json", help="a schedule file")
    parser.add_argument(
        "--plan", metavar="INSTANCE=PLAN", action="append", default=[], help="an instance uses this plan of its block"
    )
    parser.add_argument(
        "--keep",
        metavar="ID",
        action="append",
        default=[],
        help="delete all recomputations of an operation or instance",
    )
    parser.add_argument(
        "--recompute",
        metavar="ID",
        action="append",
        default=[],
        help="recompute an operation or instance, before --before",
    )
    parser.add_argument("--before", metavar="POINT", help="operation, or instance for the start of its backward")
    parser.add_argument("--all", action="store_true", help="for all instances that share the line or plan edited")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write here, - for standard output; default: S.json itself"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_force(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not (args.plan or args.keep or args.recompute):
        raise UsageError("nothing to edit\n  hint: --keep ID, --recompute ID --before POINT, or --plan INSTANCE=PLAN")
    if bool(args.recompute) != bool(args.before):
        raise UsageError(
            "--recompute and --before belong together\n  hint: --recompute h.0.mlp.act --before h.0.mlp.grad.mm"
        )
    from remate_runtime.format import checked_text

    from ..schedule_tools.analysis import open_schedule
    from ..schedule_tools.edit import Editor

    output = args.output or args.schedule
    if args.output:
        check_output(output, SCHEDULE, args.force)
    opened = open_schedule(args.schedule)
    editor = Editor(opened, args.all)
    _apply(editor, args)
    edited = editor.result()
    say(_told(opened, edited), output)
    if not args.dry_run:
        write_output(output, checked_text(edited.schedule))
        say(written(output), output)
    return exit_codes.FINE


def _apply(editor: Editor, args: argparse.Namespace) -> None:
    for text in args.plan:
        instance, equals, plan = text.partition("=")
        if not equals:
            raise UsageError(f"--plan {text!r} is not INSTANCE=PLAN")
        editor.plan(instance, plan)
    for name in args.keep:
        editor.keep(name)
    if args.recompute:
        editor.recompute(args.recompute, args.before)


def _told(opened: Analysis, edited: Analysis) -> str:
    from msgspec.structs import replace

    from ..present.changes import described
    from ..schedule_tools.diff import compare

    changes = replace(compare(opened, edited), solve=(), other=())
    text = described(changes)
    over = edited.timeline.peak - edited.schedule.solve.budget
    return f"{text}\nwarning: the peak is {size(over)} over the budget" if over > 0 else text
