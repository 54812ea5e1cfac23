"""`remate merge`: merge plans, statements, instances and notes of a schedule, and compute its figures again.

To use it as git's merge driver:

    git config merge.remate.driver "remate merge %O %A %B -L %P"
    echo '*.schedule.json merge=remate' >> .gitattributes

The result is written to OURS. If both sides changed the same item, OURS gets conflict markers and the exit status is
1. Files that are not valid schedules are merged as text.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

from remate_runtime.errors import RemateError
from remate_runtime.support.files import write_atomically

from ..present.text import count, plain
from . import exit_codes
from .output import say_aside
from .usage import UsageError


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "merge",
        help="merge a schedule that two branches changed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 if merged; 1 if conflicts are left in OURS",
    )
    parser.add_argument("base", metavar="BASE", help="the common ancestor")
    parser.add_argument("ours", metavar="OURS", help="this side; the result is written here")
    parser.add_argument("theirs", metavar="THEIRS", help="the other side")
    parser.add_argument("-L", "--label", metavar="PATH", help="name of the file in messages; default: OURS")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from remate_runtime.format import load

    from ..schedule_tools.merge import merge

    label = args.label or args.ours
    for path in (args.base, args.ours, args.theirs):
        if not Path(path).is_file():
            raise UsageError(f"{path}: no such file\n  hint: git passes %O %A %B")
    try:
        merged = merge(load(args.base), load(args.ours), load(args.theirs))
    except RemateError as error:
        return _as_text(args, label, error)
    write_atomically(args.ours, merged.text)
    for remark in merged.remarks:
        say_aside(f"{label}: {plain(remark)}")
    if not merged.conflicts:
        return exit_codes.FINE
    say_aside("\n  ".join([f"{label}: {count(len(merged.conflicts), 'conflict')}:", *map(plain, merged.conflicts)]))
    say_aside("hint: resolve the conflicts, then run `remate fmt --figures`")
    return exit_codes.FINDINGS


def _as_text(args: argparse.Namespace, label: str, error: RemateError) -> int:
    """Merge as text, with `git merge-file`."""
    from . import status_of

    reason, *hints = str(error).split("\n  hint: ")
    say_aside("\n".join([f"{label}: merged as text, because {reason}", *(f"hint: {hint}" for hint in hints)]))
    command = ["git", "merge-file", "-p", "-L", "ours", "-L", "base", "-L", "theirs", args.ours, args.base, args.theirs]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as missing:
        raise UsageError(
            f"git cannot be run: {missing.strerror}\n  hint: {args.ours} is unchanged; install git"
        ) from None
    if done.returncode > 127:
        reason = done.stderr.decode(errors="replace").strip()
        raise UsageError(f"git merge-file failed: {reason}\n  hint: {args.ours} is unchanged")
    write_atomically(args.ours, done.stdout)
    return max(exit_codes.FINDINGS, status_of(error))
