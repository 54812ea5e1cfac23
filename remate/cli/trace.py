"""`remate trace`: write the predicted step for Perfetto (ui.perfetto.dev), or for torch's memory viewer."""

from __future__ import annotations

import argparse
from typing import Any

from ..present.text import size
from . import exit_codes
from .output import SNAPSHOT, TRACE, add_force, check_output, say, write_output, written
from .sizes import add_at, opened_at
from .usage import UsageError


def configure(commands: Any) -> None:
    parser = commands.add_parser("trace", help="write the predicted step for Perfetto", description=__doc__)
    parser.add_argument("schedule", metavar="S.json", help="a schedule file; -: standard input")
    parser.add_argument(
        "-o", "--output", metavar="OUT.json", help="Trace Event JSON, for ui.perfetto.dev; - for standard output"
    )
    parser.add_argument(
        "--snapshot",
        metavar="OUT.pickle",
        help="memory snapshot, for pytorch.org/memory_viz; its addresses are invented",
    )
    add_force(parser)
    add_at(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json

    from ..present.trace import perfetto, snapshot_bytes

    if not (args.output or args.snapshot):
        raise UsageError("nothing to write\n  hint: give -o OUT.json, --snapshot OUT.pickle, or both")
    if args.output == args.snapshot:
        raise UsageError("-o and --snapshot name the same file")
    for path, kind in ((args.output, TRACE), (args.snapshot, SNAPSHOT)):
        if path:
            check_output(path, kind, args.force)
    opened = opened_at(args.schedule, args.at)
    if args.output:
        text = json.dumps(perfetto(opened), separators=(",", ":")) + "\n"
        _write(args.output, text.encode(), args)
    if args.snapshot:
        _write(args.snapshot, snapshot_bytes(opened), args)
    return exit_codes.FINE


def _write(path: str, data: bytes, args: argparse.Namespace) -> None:
    write_output(path, data)
    say(written(path, f", {size(len(data))}"), args.output, args.snapshot)
