"""`remate fit --mesh dp=8,tp=2,pp=1`: the fastest layout of ranks for a model and a batch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from remate_runtime.support.quantities import duration

from ..present.text import overhead, percent, size, table
from . import exit_codes
from .output import say
from .usage import UsageError

if TYPE_CHECKING:
    from ..api.fit_layouts import LayoutFit, LayoutFits

# Options that mean nothing without layouts.
_NEEDS_MESH = ("batch", "microbatch", "fsdp", "pipeline", "machine", "network")
_NOT_WITH = ("output", "plot", "name", "force")


def add_layouts(parser: argparse.ArgumentParser) -> None:
    """Add the options of layouts."""
    parser.add_argument(
        "--mesh",
        metavar="LAYOUT",
        nargs="+",
        help="compare layouts of ranks instead of batches: dp=8,tp=2,pp=1; the target is build(layout) as for "
        "remate.fit_layouts, and nothing is written",
    )
    parser.add_argument("--devices", metavar="N", type=int, help="compare all layouts of a number of devices")
    parser.add_argument("--batch", metavar="N", type=int, help="with layouts: samples of all ranks for one step")
    parser.add_argument(
        "--microbatch", metavar="N", type=int, help="with layouts: samples of one call of a rank; default: 1"
    )
    parser.add_argument(
        "--pipeline", metavar="SCHEDULE", help="with layouts: torch's schedule where pp > 1; default: 1F1B"
    )
    parser.add_argument(
        "--fsdp",
        metavar="PATH",
        nargs="+",
        help="with layouts: modules that fully_shard (FSDP2) is called on over the ranks of dp; default: DDP",
    )
    parser.add_argument("--machine", metavar="N", type=int, help="with layouts: devices of one machine; default: 8")
    parser.add_argument(
        "--network", metavar="SPEED", help="with layouts: of one device to other machines; default: 50GB/s"
    )


def wants_layouts(args: argparse.Namespace) -> bool:
    """Return whether the command line is about layouts. Raises UsageError for options that do not go together."""
    if not args.mesh and args.devices is None:
        for name in _NEEDS_MESH:
            if getattr(args, name) is not None:
                raise UsageError(f"--{name} belongs to layouts of ranks\n  hint: add --mesh dp=8,tp=2,pp=1")
        return False
    if args.mesh and args.devices is not None:
        raise UsageError("--mesh and --devices exclude each other\n  hint: remove one of them")
    if args.batch is None:
        raise UsageError("layouts are compared for a batch of all ranks\n  hint: add --batch 512")
    numbers = (args.batch, args.microbatch, args.machine, args.devices)
    if any(number is not None and number < 1 for number in numbers):
        raise UsageError("--batch, --microbatch, --machine and --devices are numbers from 1\n  hint: --batch 512")
    for name in _NOT_WITH:
        if getattr(args, name):
            raise UsageError(f"--{name} does not go with layouts, of which no file is written\n  hint: leave it out")
    if args.dims != ["auto"]:
        raise UsageError("layouts are compared for one size\n  hint: leave out --dims")
    return True


def fit_layouts(args: argparse.Namespace, device: dict[str, Any]) -> int:
    """Compare layouts and print a table.

    Args:
        args: The command line.
        device: The arguments about the device that `remate.fit` has, too.
    """
    from ..api.fit_layouts import fit_layouts as fitted
    from .build_file import load_builder
    from .plan_options import options_from
    from .progress import Reporter

    if args.device is not None:
        hint = "--device cuda:h100, or leave it out for estimates of a CPU"
        raise UsageError(f"layouts are planned without their devices, not on {args.device!r}\n  hint: {hint}")
    options = options_from(args)
    search = {name: getattr(options, name) for name in ("time_limit", "gap", "strategy", "effort", "differentiate")}
    given = {name: getattr(args, name) for name in ("microbatch", "pipeline", "fsdp", "machine", "network")}
    with Reporter(args.quiet) as report:
        report(f"running {args.target}")
        result = fitted(
            load_builder(args.target),
            args.mesh or args.devices,
            args.batch,
            **device,
            **{name: value for name, value in given.items() if value is not None},
            **search,
            live=options.live,
            progress=report,
        )
    if not args.quiet:
        say(summary(result), "")
    return exit_codes.FINE if result.fastest is not None else exit_codes.FINDINGS


def summary(result: LayoutFits) -> str:
    """A table with a row for each layout, and the fastest one."""
    rows = [("layout", "calls", "memory of a rank", "time of the batch", "waits", "extra time", "samples/s", "")]
    rows += [_row(fit, result) for fit in result.layouts]
    best = result.fastest
    verdict = f"no layout fits {size(result.device_memory)}"
    if best is not None and best.step is not None:
        gap = (best.step.time - best.step.bound) / best.step.time
        verdict = f"{best.layout} is the fastest layout that fits {size(result.device_memory)}"
        verdict += f"; with less recomputation it could be at most {percent(gap)} faster" if gap > 0.0005 else ""
    notes = (
        f"times: {result.cost} costs, without the optimizer; waits: for other ranks, beside collectives within layers",
        "memory: with parameters, optimizer state and inputs; the rank of the pipeline that needs most",
    )
    return "\n".join([table(rows, right=(1, 2, 3, 4, 5, 6)), *notes, verdict])


def _row(fit: LayoutFit, result: LayoutFits) -> tuple[str, ...]:
    layout, step = fit.layout, fit.step
    if step is None:
        return str(layout), "", "", "", "", "", "", fit.refused
    extra = overhead(step.time, step.time - step.recomputation, "no cost")
    rate = f"{result.batch / step.time * 1e9:,.4g}"
    mark = "fastest" if fit == result.fastest else ""
    figures = size(max(step.memory)), duration(step.time), duration(step.communication), extra, rate
    return str(layout), str(layout.microbatches), *figures, mark
