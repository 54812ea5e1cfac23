"""`remate merge`: merge a schedule by meaning: plans, statements, instances and notes; figures are computed anew.

As git's merge driver, two lines:

    git config merge.remate.driver "remate merge %O %A %B -L %P"
    echo '*.schedule.json merge=remate' >> .gitattributes

The result is written to OURS. Where both sides changed the same, conflict markers are left there, and the exit status
is 1. What cannot be merged by meaning is merged as text.
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
    parser.add_argument("base", metavar="BASE", help="what both sides began with")
    parser.add_argument("ours", metavar="OURS", help="this side; the result is written here")
    parser.add_argument("theirs", metavar="THEIRS", help="the other side")
    parser.add_argument("-L", "--label", metavar="PATH", help="what to call the file in messages; default: OURS")
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
    say_aside("hint: choose between the markers, then `remate fmt --figures` computes the figures")
    return exit_codes.FINDINGS


def _as_text(args: argparse.Namespace, label: str, error: RemateError) -> int:
    """The merge that git makes of any text: nothing of either side is lost."""
    from . import status_of

    reason, *hints = str(error).split("\n  hint: ")
    say_aside("\n".join([f"{label}: merged as text, because {reason}", *(f"hint: {hint}" for hint in hints)]))
    command = ["git", "merge-file", "-p", "-L", "ours", "-L", "base", "-L", "theirs", args.ours, args.base, args.theirs]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as missing:
        raise UsageError(f"git cannot be run: {missing.strerror}\n  hint: {args.ours} is left as it is") from None
    if done.returncode > 127:
        said = done.stderr.decode(errors="replace").strip()
        raise UsageError(f"git merge-file failed: {said}\n  hint: {args.ours} is left as it is")
    write_atomically(args.ours, done.stdout)
    return max(exit_codes.FINDINGS, status_of(error))
