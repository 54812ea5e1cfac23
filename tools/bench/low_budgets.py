"""Plans and proofs where memory is scarce: large models under low budgets, by several strategies.

    python -m tools.bench.low_budgets                                      # all, by auto and hiremate
    python -m tools.bench.low_budgets resnet101@20% unet@floor --strategies auto,hiremate,rockmate

Budget: a share of the peak without reruns, or `floor`: 1.02 times the least that is proven to be needed. Plan, bound: time
over that without reruns, in %, costs of an H200 by roofline; gap: between the two. CPU: seconds of one solve from nothing,
one thread, normal effort, capture not in it.
"""

from __future__ import annotations

import argparse
import time

from remate.api.plan import prepare
from remate.budget import parse_budget
from remate.errors import InfeasibleError, NotApplicableError
from remate.strategy import Instance, Request, policy, solve
from tests.models import ZOO

from .models import LARGE
from .text import environment

CASES = ("resnet101@20%", "fourier@20%", "unet@floor", "unet@40%", "t5@floor", "mixer@floor")
ABOVE = 1.02  # times the floor


def instance(name: str) -> Instance:
    """A model of this bench at its size, or one of tests/models at its own."""
    build = LARGE[name].build if name in LARGE else ZOO[name].build
    step = prepare(*build(), cost="h200")
    return Instance(step.captured.graph, step.parts)


def line(case: str, strategy: str, about: Instance) -> str:
    """One solve, told in a line."""
    share = case.partition("@")[2]
    base = about.baseline.peak
    budget = int(ABOVE * about.floor) if share == "floor" else parse_budget(share).resolve(base)
    before = time.process_time()
    head = f"{case:16} {100 * budget / base:5.1f}%  {strategy:12}"
    try:
        found = solve(Instance(about.graph, about.blocks), Request(budget), policy(strategy))
    except (InfeasibleError, NotApplicableError) as error:
        least = (
            f"smallest {100 * error.smallest / base:.1f}%" if isinstance(error, InfeasibleError) else "not applicable"
        )
        return f"{head}       -  {least}, {time.process_time() - before:.1f} s"
    plan, bound = (100 * (made / found.baseline_time - 1) for made in (found.time, found.lower_bound))
    spent = time.process_time() - before
    return f"{head} {plan:7.2f} {bound:7.2f} {plan - bound:6.2f} {spent:7.1f}  {found.strategy}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="MODEL@BUDGET")
    parser.add_argument("--strategies", default="auto,hiremate")
    args = parser.parse_args()
    print(f"python -m tools.bench.low_budgets; {environment()}\n{(__doc__ or '').split(chr(10) * 2)[-1]}")
    print(
        f"{'model':16} {'budget':>6}  {'strategy':12} {'plan':>7} {'bound':>7} {'gap':>6} {'CPU':>7}  found by",
        flush=True,
    )
    known: dict[str, Instance] = {}
    for case in args.cases:
        name = case.partition("@")[0]
        if name not in known:
            known[name] = instance(name)
        for strategy in args.strategies.split(","):
            print(line(case, strategy, known[name]), flush=True)


if __name__ == "__main__":
    main()
