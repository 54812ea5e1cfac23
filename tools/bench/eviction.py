"""Judges strategies with addresses: do schedules of `coop`, which needs contiguous memory, take less of it than others?

    python -m tools.bench.eviction [NAME ...]      # unet, resnet101: the step of CUDA on an H200, captured without one

Each schedule is placed in memory in three ways: in one block, with addresses assigned from live ranges (as engine
`arena` does); by a model of torch's caching allocator; and by the same with expandable segments.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from remate.errors import InfeasibleError
from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.effort import QUICK
from remate_runtime.addresses import buffers_of, pack, reserve
from remate_runtime.link import link

from .absent_gpu import step_on
from .paging import models
from .text import environment, table

OUTPUT = Path(__file__).parent / "results" / "eviction.txt"
NAMES = ("unet", "resnet101")
BUDGETS = (80, 70, 60, 50)
STRATEGIES = ("dtr", "coop", "auto")
NOTE = """Time: % more than the step that keeps everything. Live: peak of live bytes, % of that step's. The others, as multiples of the
live peak: in one block with addresses from live ranges; reserved by a model of torch's caching allocator; and by it with
expandable segments. none: does not fit. CPU: seconds, quick effort."""
HEAD = ("model", "budget", "strategy", "time", "live", "one block", "reserved", "expandable", "CPU")


def row(instance: StepInstance, percent: int, strategy: str) -> tuple[str, ...]:
    """Plan a budget and place the schedule in memory."""
    base, started = instance.baseline, time.process_time()
    try:
        planned = solve(instance, Request(base.peak * percent // 100, effort=QUICK), policy(strategy))
    except InfeasibleError:
        return "none", "", "", "", "", f"{time.process_time() - started:.1f}"
    spent = time.process_time() - started
    buffers = buffers_of(link(instance.graph, planned.recomputes))
    places = pack(buffers).height, reserve(buffers).reserved, reserve(buffers, expandable=True).reserved
    return (
        f"{100 * (planned.time / base.time - 1):.2f}",
        f"{100 * planned.peak / base.peak:.1f}",
        *(f"{place / planned.peak:.3f}" for place in places),
        f"{spent:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    rows: list[tuple[str, ...]] = [HEAD]
    for name in parser.parse_args().names:
        step = step_on("h200", models()[name]())
        instance = StepInstance(step.captured.graph, step.parts)
        for percent in BUDGETS:
            for strategy in STRATEGIES:
                rows.append((name, f"{percent}%", strategy, *row(instance, percent, strategy)))
                print(*rows[-1], flush=True)
    OUTPUT.write_text(
        f"python -m tools.bench.eviction; step and costs: cuda:h200; {environment()}\n{NOTE}\n\n{table(rows)}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
