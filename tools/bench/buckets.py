"""Compares one plan for a range of sizes with a separate plan for each size.

    python -m tools.bench.buckets -o tools/bench/results/buckets.txt

Models are the examples, with costs from the roofline model of a CPU. Each file is planned at the largest size, with a
share of its baseline peak as the budget. The same budget in bytes holds at all sizes. Overhead is the time over the
baseline at the same size, in percent: for the plan of the file (without recomputation where none is needed), and for a
plan of this size only. The difference is the most that plans for several buckets of sizes could gain.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from remate.api.options import PlanOptions
from remate.api.plan import plan_step, prepare
from remate.api.settings import settings_of
from remate.dims.open_sizes import OpenSizes
from remate.errors import InfeasibleError
from remate.profile.costing import costed
from remate.strategy import Request, StepInstance, effort_named, policy, solve
from remate_runtime.flat_step import expand
from remate_runtime.format import Dimension, Schedule, at_size, spelled
from remate_runtime.link import fitted, link, simulate
from remate_runtime.support.quantities import size

from .text import environment, table

_COST = "cpu"
_PARTS = 8  # shares of a range at which sizes are measured
_BT = {0: "b", 1: "t"}
_SHARES = {"gpt2": "50%", "encoder_decoder": "50%", "unet": "60%", "resnet": "50%"}  # as in the checked-in files
CASES: dict[str, Any] = {
    "gpt2": {"input_ids": _BT, "labels": _BT},
    "encoder_decoder": ({0: "b"}, {0: "b"}, {0: "b"}),  # its mask has one length
    "unet": {"images": {0: "b", 2: "h", 3: "w"}},
    "resnet": {"images": {0: "b"}},
}


class Row(msgspec.Struct, frozen=True):
    """Overheads in percent; None without a plan."""

    at: dict[str, int]
    plan: float | None
    own: float | None


def sizes(dims: dict[str, Dimension]) -> Iterator[dict[str, int]]:
    """Return the largest size, and sizes of each dimension separately down to half of it."""
    most = {name: dim.max for name, dim in dims.items()}
    yield most
    for name, dim in dims.items():
        lower = {dim.max * part // _PARTS // dim.multiple * dim.multiple for part in range(_PARTS // 2, _PARTS)}
        for number in sorted(n for n in lower if dim.min <= n < dim.max):
            yield {**most, name: number}


def row(schedule: Schedule, parts: Any, at: dict[str, int]) -> Row:
    graph = costed(expand(at_size(schedule, at)).graph, _COST)
    instance, budget = StepInstance(graph, parts), schedule.solve.budget
    planned = expand(fitted(schedule, at).schedule)
    linked = simulate(link(graph, planned.recomputes))

    def over(spent: int) -> float:
        return (spent / instance.baseline.time - 1) * 100

    try:
        own = solve(instance, Request(budget, 0.002, effort_named("normal")), policy("auto")).time
    except InfeasibleError:
        return Row(at, over(linked.time) if linked.peak <= budget else None, None)
    return Row(at, over(linked.time) if linked.peak <= budget else None, over(own))


def rows(name: str, share: str) -> tuple[int, list[Row]]:
    """Return the budget in bytes, and the overheads at each size."""
    model, args, *more = importlib.import_module(f"examples.{name}").build()
    kwargs = more[0] if more else {}
    step = prepare(model, args, kwargs, _COST, open_sizes=OpenSizes(CASES[name]))
    settings = settings_of(PlanOptions(), share)
    schedule = plan_step(step, settings, _COST, name=name)
    return schedule.solve.budget, [row(schedule, step.parts, at) for at in sizes(schedule.model.dims)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    parser.add_argument(
        "--budget", help="share of the peak without recomputation at the largest size; default: that of the example"
    )
    parser.add_argument("--models", nargs="+", choices=sorted(CASES), default=list(CASES))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    table_rows: list[tuple[str, ...]] = [("", "budget", "at", "plan of the largest", "own plan", "difference, points")]
    for name in chosen.models:
        start = time.process_time()
        budget, measured_rows = rows(name, chosen.budget or _SHARES[name])
        for row_of_budget in measured_rows:
            plan, own = (None if x is None else f"{x:+.2f}%" for x in (row_of_budget.plan, row_of_budget.own))
            points = (
                ""
                if row_of_budget.plan is None or row_of_budget.own is None
                else f"{row_of_budget.plan - row_of_budget.own:.2f}"
            )
            table_rows.append((name, size(budget), spelled(row_of_budget.at), plan or "none", own or "none", points))
        print(f"{name}: {time.process_time() - start:.0f} CPU s", flush=True)
        print(table([table_rows[0], *table_rows[-len(measured_rows) :]]), flush=True)
    text = f"python -m tools.bench.buckets --models {' '.join(chosen.models)}; {environment()}\n\n{table(table_rows)}\n"
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
