"""`remate edit`: change decisions of a schedule file from the command line, and show the effect on peak and time.

Keeping, recomputing and paging change memory and time, never a gradient. Edits are applied in this order: --range,
--plan, --split, --keep, --recompute, --page.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from ..present.text import size
from . import exit_codes
from .output import SCHEDULE, add_force, check_output, say, write_output, written
from .usage import UsageError

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis
    from ..schedule_tools.edit import Editor


_RANGE = re.compile(r"(\w+)=(\d{1,15})\.\.(\d{1,15})", re.ASCII)


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "edit",
        help="keep, recompute, page, or choose a plan, without opening the file",
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
        help="delete all recomputations and pages of an operation or instance",
    )
    parser.add_argument(
        "--recompute",
        metavar="ID",
        action="append",
        default=[],
        help="recompute an operation or instance, before --before",
    )
    parser.add_argument("--before", metavar="POINT", help="an operation, or an instance for the start of its backward")
    parser.add_argument(
        "--page",
        metavar="ID",
        action="append",
        default=[],
        help="page a value (an operation's, or ID:2 for output 2) or what an instance keeps",
    )
    parser.add_argument(
        "--to", choices=("disk", "host"), default="disk", help="where --page keeps values; default disk"
    )
    for point, meaning in (
        ("out", "from which the copy may start; default: when the value exists"),
        ("gone", "before which its memory is free; default: after the last read in forward"),
        ("back", "before which it gets memory again; default: the next read"),
    ):
        parser.add_argument(f"--{point}", metavar="POINT", default="", help=f"of --page: the operation {meaning}")
    parser.add_argument(
        "--range",
        metavar="SIZE",
        action="append",
        default=[],
        help="narrow the range of a named size: b=2..16, around what was planned",
    )
    parser.add_argument(
        "--split",
        metavar="ID",
        nargs="+",
        default=(),
        help="run these operations of one block tile by tile along rows; `remate show` lists the gradients whose "
        "order of summation changes",
    )
    parser.add_argument("--into", metavar="TILES", type=int, default=0, help="number of tiles of --split")
    parser.add_argument("--all", action="store_true", help="for all instances that share the line or plan edited")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write here, - for standard output; default: S.json itself"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_force(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not (args.plan or args.keep or args.recompute or args.page or args.range or args.split):
        raise UsageError(
            "nothing to edit\n  hint: --keep ID, --recompute ID --before POINT, --page ID, --split ID --into TILES, "
            "--range b=2..16, or --plan INSTANCE=PLAN"
        )
    if bool(args.split) != bool(args.into):
        raise UsageError(
            "--split and --into belong together\n  hint: for example --split lm_head.mm lm_head.grad.mm --into 8"
        )
    if not args.page and (args.out or args.gone or args.back):
        raise UsageError(
            "--out, --gone and --back need --page\n  hint: for example --page h.0.mlp.act --gone h.1.mlp.act"
        )
    if bool(args.recompute) != bool(args.before):
        raise UsageError(
            "--recompute and --before belong together\n"
            "  hint: for example --recompute h.0.mlp.act --before h.0.mlp.grad.mm"
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
    say(_summary(opened, edited), output)
    if not args.dry_run:
        write_output(output, checked_text(edited.schedule))
        say(written(output), output)
    return exit_codes.FINE


def _apply(editor: Editor, args: argparse.Namespace) -> None:
    for text in args.range:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise UsageError(f"--range {text[:80]!r} is not NAME=LOW..HIGH\n  hint: --range b=2..16")
        editor.narrow(match[1], int(match[2]), int(match[3]))
    for text in args.plan:
        instance, equals, plan = text.partition("=")
        if not equals:
            raise UsageError(f"--plan {text!r} is not INSTANCE=PLAN")
        editor.plan(instance, plan)
    if args.split:
        editor.split(args.split, args.into)
    for name in args.keep:
        editor.keep(name)
    if args.recompute:
        editor.recompute(args.recompute, args.before)
    if args.page:
        editor.page(args.page, args.to, args.out, args.gone, args.back)


def _summary(opened: Analysis, edited: Analysis) -> str:
    from msgspec.structs import replace

    from ..present.changes import described
    from ..schedule_tools.diff import compare

    changes = replace(compare(opened, edited), solve=(), other=())
    text = described(changes)
    over = edited.timeline.peak - edited.schedule.solve.budget
    return f"{text}\nwarning: the peak is {size(over)} over the budget" if over > 0 else text
