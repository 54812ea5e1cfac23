"""`remate strategies`: list the names for `--strategy` with solver, requirements and paper, or describe one of them."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from typing import Any

import msgspec

from remate_runtime.extras import require

from ..present.text import table
from . import exit_codes

_NEEDS = {
    "backward": "a backward",
    "forward": "no backward",
    "hierarchy": "blocks",
    "chain": "a chain",
    "order": "a free order",
}


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "strategies", help="list the strategies and bounds, or describe one", description=__doc__
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a strategy to describe; default: list all")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate strategies", "plan")
    from ..strategy import registry
    from ..strategy.descriptions import describe
    from ..strategy.paging import PAGING_STRATEGIES
    from ..strategy.portfolio import AUTO

    paging = {strategy.name: strategy for strategy in PAGING_STRATEGIES}
    if args.name in paging:
        chosen = paging[args.name]
        print(_described(chosen, chosen.description, "a disk budget", ()))
        return exit_codes.FINE
    if args.name is not None:
        strategy = registry.strategy(args.name)
        needs = ", ".join(_NEEDS[need] for need in sorted(strategy.needs))
        print(_described(strategy, describe(strategy), needs, strategy.options))
        return exit_codes.FINE
    head = ("name", "what it does", "solver", "needs", "paper")
    tried = dict.fromkeys(step.name for step in (*AUTO.steps, *AUTO.smallest) if step.name in registry.strategy_names())
    print(table([head, *(_row(registry.strategy(name)) for name in registry.strategy_names())]))
    users = {n: registry.strategy(n).options for n in registry.strategy_names() if registry.strategy(n).options}
    chosen = "; ".join(f"{name}: {', '.join(sorted(options))}" for name, options in users.items())
    print(f"\nsolvers to choose (--solver OPTION=NAME), by strategy: {chosen}")
    print(f"\nauto tries {', '.join(tried)}, as far as they are needed\n")
    rows = [(each.name, each.summary, each.solver, "a disk budget", each.reference) for each in PAGING_STRATEGIES]
    print(table([("with pages", *head[1:]), *rows]) + "\n")
    print(table([("bound", *head[1:]), *(_row(registry.bound(name)) for name in registry.bound_names())]))
    return exit_codes.FINE


def _described(strategy: Any, about: Any, needs: str, options: Iterable[str]) -> str:
    """Return what a strategy does, needs and takes from its source."""
    from ..strategy.descriptions import SECTIONS

    values = msgspec.structs.astuple(about)
    lines = [f"{strategy.name}: {strategy.summary}"]
    facts = (("solver", strategy.solver), ("needs", needs), ("options", ", ".join(sorted(options))))
    lines += [f"{label}: {value}" for label, value in facts if value and value != "none"]
    for label, value in zip(SECTIONS, values, strict=True):
        lines += ["", *textwrap.wrap(f"{label}: {value or 'not stated'}", 100)]
    return "\n".join(lines)


def _row(listed: Any) -> tuple[str, ...]:
    needs = ", ".join(_NEEDS[need] for need in sorted(listed.needs))
    return listed.name, listed.summary, listed.solver, needs, listed.reference
