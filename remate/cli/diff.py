"""`remate diff`: which decisions changed between two schedules, and the effect on peak and time.

To use it as git's diff driver:

    git config diff.remate.command "remate diff --git"
    echo '*.schedule.json diff=remate' >> .gitattributes
"""

from __future__ import annotations

import argparse
from typing import Any

from ..present.text import json_text
from . import exit_codes
from .output import say
from .sizes import add_at, both_at
from .usage import UsageError

_SHOWN = 12  # per kind, without --all


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "diff",
        help="show which decisions differ between two schedules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 if the schedules are equal, 1 if they differ; with --git always 0 unless git's call "
        "fails",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="the old schedule and the new one; -: standard input")
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown"),
        default="text",
        help="markdown: for a comment on a pull request; default text",
    )
    parser.add_argument("--all", action="store_true", help=f"list everything, not only the first {_SHOWN} of a kind")
    parser.add_argument(
        "--title", metavar="TEXT", help="title of the markdown section; default: the name of the new file"
    )
    parser.add_argument(
        "--git", action="store_true", help="FILE… are what git passes: path old-file old-hex old-mode new-file …"
    )
    add_at(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.git:
        from .git_driver import drive

        return drive(args.files)
    if len(args.files) != 2:
        raise UsageError("diff takes two files\n  hint: remate diff OLD.json NEW.json")
    from ..present.changes import described
    from ..schedule_tools.diff import compare
    from ..schedule_tools.sizes import at_the_size_of

    old, new = both_at(args.files, args.at)
    changes = compare(old, at_the_size_of(new, old))
    limit = None if args.all else _SHOWN
    if args.format == "json":
        print(json_text(changes))
    elif args.format == "markdown":
        from ..present.markdown import markdown

        say(markdown(args.title or args.files[1], changes, limit))
    else:
        say(described(changes, limit))
    return exit_codes.FINE if changes.equal else exit_codes.FINDINGS
