"""`remate strategies`: list the names for `--strategy`, with a summary, the solver, requirements and the paper."""

from __future__ import annotations

import argparse
from typing import Any

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
    parser = commands.add_parser("strategies", help="list the strategies and bounds", description=__doc__)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("remate strategies", "plan")
    from ..strategy import registry
    from ..strategy.portfolio import AUTO

    head = ("name", "what it does", "solver", "needs", "paper")
    tried = dict.fromkeys(step.name for step in (*AUTO.steps, *AUTO.smallest) if step.name in registry.strategy_names())
    print(table([head, *(_row(registry.strategy(name)) for name in registry.strategy_names())]))
    users = {n: registry.strategy(n).options for n in registry.strategy_names() if registry.strategy(n).options}
    chosen = "; ".join(f"{name}: {', '.join(sorted(options))}" for name, options in users.items())
    print(f"\nsolvers to choose (--solver OPTION=NAME), by strategy: {chosen}")
    print(f"\nauto tries {', '.join(tried)}, as far as they are needed\n")
    print(table([("bound", *head[1:]), *(_row(registry.bound(name)) for name in registry.bound_names())]))
    return exit_codes.FINE


def _row(listed: Any) -> tuple[str, ...]:
    needs = ", ".join(_NEEDS[need] for need in sorted(listed.needs))
    return listed.name, listed.summary, listed.solver, needs, listed.reference
