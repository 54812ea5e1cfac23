"""`remate instance`: write a model's training step as a bare graph of operations, for `remate solve` and other
solvers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remate_runtime.extras import require

from ..present.text import count
from . import exit_codes
from .output import INSTANCE, STDOUT, add_force, check_output, say, write_output, written
from .plan_options import DIFFERENTIATE, add_costs, add_target, options_from


def configure(commands: Any) -> None:
    parser = commands.add_parser("instance", help="write a model's training step as a bare DAG", description=__doc__)
    parser.add_argument("target", metavar="FILE.py:build", help="function that returns (model, args[, kwargs])")
    parser.add_argument(
        "-o", "--output", metavar="I.json", required=True, help="the instance file to write; - for standard output"
    )
    add_costs(parser)
    parser.add_argument("--differentiate", metavar="NAME", nargs="+", help=DIFFERENTIATE)
    add_target(
        parser, "move the model there first: cpu, cuda, cuda:1", "name of the instance; default: that of the file"
    )
    add_force(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate instance", "torch", "plan")
    check_output(args.output, INSTANCE, args.force)
    from .device import check_trains, loaded
    from .progress import Reporter

    target = loaded(args.target, args.device, args.threads, args.quiet)
    check_trains(target, args.target, args.evaluation)
    from ..api.plan import prepare
    from ..standalone_graphs import encode, from_step

    name = args.name or (type(target.model).__name__ if args.output == STDOUT else Path(args.output).stem)
    with Reporter(args.quiet) as report:
        step = prepare(target.call, cost=args.cost, options=options_from(args), progress=report)
        graph = from_step(step.captured.graph, name)
        write_output(args.output, encode(graph), rescue=True)
    if not args.quiet:
        say(f"{count(len(graph.nodes), 'node')}, {count(len(graph.edges), 'edge')}", args.output)
        say(written(args.output), args.output)
    return exit_codes.FINE
