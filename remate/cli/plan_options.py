"""Options that several planning commands share: costs, search, and model."""

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

EVALUATION = "accept a model in evaluation mode: no dropout, fixed batch norm"
DIFFERENTIATE = (
    "outputs that get a gradient, '*' for all; default: the field `loss`, else the only scalar that follows "
    "from the others (`return logits, loss`), else every differentiable output; NAME:contiguous, NAME:channels_last, "
    "NAME:preserve or NAME:0,2,1 also says in which memory layout its gradient arrives"
)
DELIVERED = (
    "use of gradients when backward delivers them: retained to the end of the step (default), accumulated in an "
    "existing .grad, or consumed by an optimizer in backward"
)
LIVE = "attributes and inputs that are numbers and change during training, read at every call: alpha 'h.*.drop.p'"
SPLIT = (
    "permit that the loss head runs in tiles of rows, forward and backward, if that is faster (all: other operations "
    "that need much memory, too): the floor falls, and the file lists gradients with another order of sums; the "
    "default budget is 60%% then"
)
# Options with the same name as in `PlanOptions`.
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
    "split",
    "objective",
    "power",
    "limit",
    "fsdp",
    "shards",
)


def add_costs(parser: argparse.ArgumentParser, default: str | None = "measured") -> None:
    """Add the options about costs. default: value of `--cost`; None if the schedule file has one."""
    source = "measured here (default), or" if default else "instead of those of the file: measured, or"
    compiled = "; compiled (plan, replan): measured, for a budget that holds under --engine compiled"
    parser.add_argument(
        "--cost", default=default, help=f"{source} a device of the roofline model: h200, a100, t4, cpu{compiled}"
    )
    parser.add_argument(
        "--profile",
        metavar="P.json",
        help="file of measured costs, instead of the user's cache; new costs are added to it",
    )
    parser.add_argument("--no-cache", action="store_true", help="do not use the user's cache of costs")
    parser.add_argument("--measure-again", action="store_true", help="measure again what the profile or cache has")


def add_search(parser: argparse.ArgumentParser, time_limit: str | None = None) -> None:
    """Add the options of the search and of the captured step. time_limit: help of `--time-limit`, None to omit it."""
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


def add_energy(parser: argparse.ArgumentParser) -> None:
    """Options of strategy `poet`."""
    parser.add_argument(
        "--objective", default="time", help="with --strategy poet: time (default) or energy, of the device --power"
    )
    parser.add_argument(
        "--power", metavar="DEVICE", default="", help="with poet: a72, m4 or m0, its watts and its storage"
    )
    parser.add_argument(
        "--limit",
        metavar="FACTOR",
        type=positive,
        help="with poet: most of the other figure, time or energy, as a multiple of the baseline's: 1.2",
    )


def add_fsdp(parser: argparse.ArgumentParser) -> None:
    """Add the options of parameters that FSDP2 shards."""
    parser.add_argument(
        "--fsdp",
        metavar="PATH",
        nargs="+",
        help="modules that fully_shard (FSDP2) will shard, beside the model: 'layers.*'; the budget is that of a rank",
    )
    parser.add_argument("--shards", metavar="N", type=int, help="with --fsdp: ranks that parameters are divided over")
    parser.add_argument(
        "--keep-gathered",
        metavar="PATH",
        nargs="*",
        help="with --fsdp: modules whose parameters stay gathered from forward to backward: all without PATH, '' is "
        "the model; default: ''",
    )


def add_target(parser: argparse.ArgumentParser, device: str, name: str) -> None:
    """Add the options about the model. device, name: help of `--device` and `--name`."""
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
    """Convert a command line to options of `remate.plan`.

    Raises:
        UsageError: Two options contradict each other.
        ProfileError: The profile cannot be read. Raised before the model is traced.
        OSError: The profile cannot be written.
    """
    from ..api.options import PlanOptions

    if args.measure_again and args.no_cache and args.profile is None:
        raise UsageError("--measure-again and --no-cache exclude each other\n  hint: remove one of them")
    if args.profile is not None:
        _check_profile(Path(args.profile))
    given = {name: getattr(args, name) for name in _SAME if hasattr(args, name)}
    if "strategy" in given:
        given["strategy"] = strategy_text(args)
    keep = getattr(args, "keep_gathered", None)
    given["keep_gathered"] = False if keep is None else keep or True
    return PlanOptions(**given, cache=not args.no_cache, device=getattr(args, "gpu", None))


def _check_profile(path: Path) -> None:
    from ..profile.store import read

    if read(path) is None:
        check_writable(path)
