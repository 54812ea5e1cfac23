"""`--strategy` and `--solver`, the same for all commands that search."""

from __future__ import annotations

import argparse

SOLVER = (
    "solvers of a strategy: leaf=NAME and inner=NAME, strategies for the parts of hiremate; milp=NAME, a solver of "
    "Pyomo for integer programs (cbc, scip, gurobi); tree=graph, parts by the values that cross"
)


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add `--strategy` and `--solver`."""
    parser.add_argument(
        "--strategy", metavar="NAME", default="auto", help="how to solve, see `remate strategies`; default: auto"
    )
    parser.add_argument("--solver", metavar="OPTION=NAME", nargs="+", default=[], help=SOLVER)


def strategy_text(args: argparse.Namespace) -> str:
    """The strategy with its solvers, as `remate.plan` takes it. Raises UnknownNameError for unknown options."""
    if not getattr(args, "solver", None):
        return args.strategy
    from ..strategy.solver_choice import solvers_of, with_solvers

    pairs = [text.partition("=") for text in args.solver]
    return with_solvers(args.strategy, solvers_of([(name, value) for name, _, value in pairs]))
