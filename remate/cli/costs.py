"""The options of all commands that need costs of operations: where they come from, and whether they are measured
anew."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remate_runtime.support.files import check_writable

from .usage import UsageError


def add_costs(parser: argparse.ArgumentParser, default: str | None = "measured") -> None:
    """default: of `--cost`; None where a file says what it was."""
    said = "measured here (default), or" if default else "in place of those of the file: measured, or"
    compiled = "; compiled (plan, replan): measured, for a budget that holds under --engine compiled"
    parser.add_argument(
        "--cost", default=default, help=f"{said} a device of the roofline model: h200, a100, t4, cpu{compiled}"
    )
    parser.add_argument(
        "--profile",
        metavar="P.json",
        help="measured costs to reuse, instead of those in the user's cache; new ones are added to the file",
    )
    parser.add_argument("--no-cache", action="store_true", help="neither use nor keep costs in the user's cache")
    parser.add_argument("--measure-again", action="store_true", help="measure what profile or cache hold, too")


def chosen_costs(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `remate.plan` that the options stand for, but for `cost`.

    Raises UsageError, and ProfileError or OSError for a profile that can neither be read nor be made: before the model
    is traced and operations are measured.
    """
    if args.measure_again and args.no_cache and args.profile is None:
        raise UsageError(
            "--measure-again replaces costs in the cache, and --no-cache leaves it alone: give one of them"
        )
    if args.profile is not None:
        _check_profile(Path(args.profile))
    return {"profile": args.profile, "cache": not args.no_cache, "measure_again": args.measure_again}


def _check_profile(path: Path) -> None:
    from ..profile.store import read

    if read(path) is None:
        check_writable(path)
