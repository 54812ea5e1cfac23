"""Options that several planning commands share: costs, the search, and how the model is made ready."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from remate_runtime.format import GRADIENTS
from remate_runtime.support.files import check_writable

from .strategy_option import add_strategy, strategy_text
from .usage import UsageError

if TYPE_CHECKING:
    from ..api.options import PlanOptions

EVALUATION = "plan a model that is in evaluation mode as it is: no dropout, fixed batch norm"
DIFFERENTIATE = (
    "outputs that get a gradient, '*' for all; default: the field `loss`, else the only scalar (`return logits, "
    "loss`), else every output that has one in eager"
)
DELIVERED = (
    "what happens to gradients when backward delivers them: retained to the end of the step (default), accumulated "
    "in an existing .grad, or consumed by an optimizer in backward"
)
LIVE = "attributes that change while training, read from the model at every call: alpha 'h.*.drop.p'"
# Options of commands whose names are those of `PlanOptions`.
_SAME = (
    "at",
    "profile",
    "measure_again",
    "time_limit",
    "gap",
    "strategy",
    "effort",
    "differentiate",
    "gradients",
    "live",
    "disk_budget",
    "host_budget",
    "bandwidth",
)


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


def add_search(parser: argparse.ArgumentParser, time_limit: str | None = None) -> None:
    """Options of the search, of the captured step and of the files written. time_limit: what it limits; None where
    there is none."""
    add_strategy(parser)
    parser.add_argument(
        "--effort", metavar="LEVEL", default="normal", help="quick, normal (default) or thorough; counted, not timed"
    )
    if time_limit is not None:
        parser.add_argument("--time-limit", metavar="S", type=positive, help=time_limit)
    parser.add_argument(
        "--gap", type=positive, default=0.002, help="stop when proven this close to the fastest, default 0.002"
    )
    parser.add_argument("--differentiate", metavar="NAME", nargs="+", help=DIFFERENTIATE)
    parser.add_argument("--gradients", choices=GRADIENTS, default="retained", help=DELIVERED)
    parser.add_argument("--live", metavar="NAME", nargs="+", default=[], help=LIVE)


def add_target(parser: argparse.ArgumentParser, device: str, name: str) -> None:
    """Options of how the model is made ready. device, name: texts of `--device` and `--name`."""
    parser.add_argument("--evaluation", action="store_true", help=EVALUATION)
    parser.add_argument("--threads", metavar="N", type=int, help="threads of torch on the CPU")
    parser.add_argument("--device", help=device)
    parser.add_argument("--name", default="", help=name)
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def options_from(args: argparse.Namespace) -> PlanOptions:
    """Return the options of `remate.plan` that a command line stands for, as far as the command has them.

    Raises:
        UsageError: Two options contradict each other.
        ProfileError: The profile cannot be read. Raised before the model is traced.
        OSError: The profile cannot be written.
    """
    from ..api.options import PlanOptions

    if args.measure_again and args.no_cache and args.profile is None:
        raise UsageError(
            "--measure-again replaces costs in the cache, and --no-cache leaves it alone: give one of them"
        )
    if args.profile is not None:
        _check_profile(Path(args.profile))
    given = {name: getattr(args, name) for name in _SAME if hasattr(args, name)}
    if "strategy" in given:
        given["strategy"] = strategy_text(args)
    return PlanOptions(**given, cache=not args.no_cache, device=getattr(args, "gpu", None))


def _check_profile(path: Path) -> None:
    from ..profile.store import read

    if read(path) is None:
        check_writable(path)
