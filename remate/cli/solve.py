"""`remate solve`: solve a DAG of operations with times and bytes, without PyTorch.

INSTANCE.json is an instance of remate (schema/README.md), or a graph of Moccasin, POET or networkx (node-link data with
`time` and `bytes` on the nodes). Times are in the unit of the file.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require

from ..interrupts import Finishing
from ..present.text import percent, size, table
from . import exit_codes
from .output import RESULT, add_force, check_output, say, write_output, written
from .plan import budget_text
from .plan_options import add_energy, positive
from .strategy_option import add_strategy, strategy_text
from .usage import UsageError

if TYPE_CHECKING:
    from ..standalone_graphs import BareResult


def configure(commands: Any) -> None:
    parser = commands.add_parser("solve", help="solve a bare DAG of operations, without PyTorch", description=__doc__)
    parser.add_argument("instance", metavar="INSTANCE.json", help="the graph to solve")
    requested = parser.add_mutually_exclusive_group(required=True)
    requested.add_argument(
        "--budget", type=budget_text, help="4GiB, 512MB, bytes, or a share of the peak of the graph's own order: 80%%"
    )
    requested.add_argument(
        "--check", metavar="RESULT.json", help="check a result file against the graph, instead of solving"
    )
    parser.add_argument("-o", "--output", metavar="RESULT.json", help="the result file to write; - for standard output")
    add_strategy(parser)
    parser.add_argument(
        "--keep-order",
        action="store_true",
        help="keep the order of the graph; by default the solver may reorder it",
    )
    parser.add_argument(
        "--effort", metavar="LEVEL", default="normal", help="quick, normal (default) or thorough; counted, not timed"
    )
    parser.add_argument(
        "--time-limit", metavar="S", type=positive, help="limit of the search in seconds; default: none"
    )
    parser.add_argument(
        "--gap", type=positive, help="stop when proven this close to the fastest; default: proven fastest"
    )
    add_energy(parser)
    parser.add_argument(
        "--disk-budget", metavar="SIZE", help="with poet, 64GiB: most bytes in storage; default: no limit"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    add_force(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate solve", "plan")
    from .. import standalone_graphs as bare

    if args.check is not None:
        return _check(args)
    if args.output is not None:
        check_output(args.output, RESULT, args.force)
    from .progress import Reporter

    instance = bare.read(args.instance)
    with Reporter(args.quiet) as report, Finishing():
        result = bare.solve(
            instance,
            args.budget,
            strategy_text(args),
            keep_order=args.keep_order,
            effort=args.effort,
            gap=args.gap or 0.0,
            time_limit=args.time_limit,
            progress=report,
            objective=args.objective,
            power=args.power,
            limit=args.limit,
            disk_budget=args.disk_budget,
        )
        data = result.encode()
        if args.output is not None:
            write_output(args.output, data, rescue=True)
    if not args.quiet:
        say(summary(result), args.output)
        if args.output is not None:
            say(written(args.output, f", {size(len(data))}"), args.output)
    return exit_codes.FINE


def _check(args: argparse.Namespace) -> int:
    from .. import standalone_graphs as bare
    from ..standalone_graphs.readers import contents

    if args.output is not None:
        raise UsageError("--check writes no file\n  hint: remove --output")
    instance = bare.read(args.instance)
    result = contents(args.check, bare.decode_result)
    bare.verify(instance, result)
    if not args.quiet:
        say(f"{args.check}: valid\n" + summary(result))
    return exit_codes.FINE


def summary(result: BareResult) -> str:
    """The figures of a result, in a few lines."""
    share = result.peak / max(1, result.baseline_peak)
    repeated = len(result.sequence) - len(set(result.sequence))
    rows = [
        ("peak", size(result.peak), f"{percent(share)} of the baseline's, of a budget of {size(result.budget)}"),
        (
            "time",
            f"{result.time:,}",
            f"{result.overhead * 100:+.4f}% over the baseline, {repeated} operations recomputed",
        ),
        ("bound", f"{result.lower_bound:,}", f"{result.bound * 100:+.4f}%: proven, no sequence is faster"),
    ]
    if result.energy is not None:
        moved = len(result.pages)
        rows.append(("energy", f"{result.energy:.6g} J", f"on {result.power}; {moved} page{'' if moved == 1 else 's'}"))
    elif result.pages:
        rows.append(("pages", f"{len(result.pages):,}", "time does not count waits for copies"))
    if result.pages or result.energy is not None:
        del rows[2]  # the bound is of sequences without pages
    order = ", in another order" if result.reordered else ""
    how = f"solved by {result.strategy} ({result.solver}){order}, stopped by {result.stopped_by}; checked independently"
    return "\n".join([table(rows, right=(1,)), how])
