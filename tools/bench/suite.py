"""Plans models of realistic sizes for an absent GPU: solve times, gaps, and classical strategies at the same budgets.

    python -m tools.bench.suite                       # all models, about 15 minutes
    python -m tools.bench.suite gpt2 unet --budgets 60%,40%
    python -m tools.bench.suite gpt2 gpt2-xl resnet101 t5 --budgets 50%,30%,20% -o tools/bench/results/suite.txt

`tests/docs/test_figures.py` fails if operations, peaks or overheads in the last file are not what the code gives.

The step is that of CUDA on an H200, captured without one; costs: roofline model of an H200, so plans are
reproducible. Budget and peak: share of the baseline peak, beside parameters, buffers and inputs.
Overhead, bound, gap: of the step's time without recomputation. Solve: seconds of one solve from scratch on one
thread. Blocks, Chen, Rotor: overhead of per-block checkpointing, of Chen's segments and of Rotor's dynamic programme at
the same budget; - if they do not fit, ! if they are faster than remate or if a figure misses its target. The last rows
of a table are remate's plans at the smallest peaks of these three.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import nn

import remate
from remate.api.writing import schedule_of
from remate.budget import parse_budget
from remate.errors import InfeasibleError
from remate.partition.hierarchy import Hierarchy
from remate.strategy import Candidate, Context, Deadline, Request, Solution, StepInstance, candidates, solve
from remate.strategy.registry import strategy
from remate_runtime.format import encode

from .absent_gpu import step_on
from .models import LARGE, Large
from .text import environment, table

BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", "20%")
COST = "h200"
DEVICE = f"cuda:{COST}"
SHORT = {"checkpoint-blocks": "blocks", "chen-sqrt": "Chen", "rotor": "Rotor"}


class Row(msgspec.Struct, frozen=True):
    """One budget in bytes. `ours` is None without a plan. `theirs` has each strategy's fastest plan that fits."""

    label: str
    budget: int
    seconds: float
    ours: Solution | None
    smallest: int
    kilobytes: float
    theirs: dict[str, Candidate | None]

    def slower(self) -> list[str]:
        """Return the classical strategies that are faster than remate here."""
        return [
            name for name, c in self.theirs.items() if c is not None and (self.ours is None or c.time < self.ours.time)
        ]


class Report(msgspec.Struct, frozen=True):
    """One model. `smallest` is the least peak of each strategy, in bytes."""

    model: Large
    operations: int
    seconds: float
    baseline: Candidate
    floor: int
    smallest: dict[str, int]
    rows: list[Row]


def examine(model: Large, budgets: Sequence[str], time_limit: float) -> Report:
    started = time.monotonic()
    step = step_on(COST, model.build())
    seconds = time.monotonic() - started
    about = StepInstance(step.captured.graph, step.parts)
    limits = [(text, parse_budget(text).resolve(about.baseline.peak)) for text in budgets]
    seen = _classical(about, [limit for _, limit in limits])
    smallest = {name: min(c.peak for c in candidates_of_name) for name, candidates_of_name in seen.items()}
    limits += [(f"{SHORT[name]}' least", peak) for name, peak in smallest.items() if peak < about.baseline.peak]
    rows: list[Row] = []
    for label, limit in limits:
        rows.append(_row(step, label, limit, time_limit, seen))
        print(f"{model.name} {label}: {_summary(rows[-1], about.baseline)}", file=sys.stderr, flush=True)
    tried = _row(step, "floor", about.floor, time_limit, {})
    smallest = {"ours": min(row.smallest for row in (*rows, tried)), **smallest}
    operations = sum(not op.view for op in step.captured.graph.operations)
    return Report(model, operations, seconds, about.baseline, about.floor, smallest, rows)


def _classical(about: StepInstance, limits: Sequence[int]) -> dict[str, list[Candidate]]:
    """Return all plans of the classical strategies, for these budgets and for one that is too small."""
    with Deadline() as deadline:
        return {
            name: [
                candidate
                for limit in (*limits, about.floor)
                for candidate in candidates(
                    strategy(name), about, Request(limit), Context(deadline, about.baseline.time)
                )
            ]
            for name in SHORT
        }


def _row(step: Hierarchy, label: str, limit: int, time_limit: float, seen: dict[str, list[Candidate]]) -> Row:
    theirs = {
        name: min((c for c in candidates_of_name if c.peak <= limit), key=lambda c: c.time, default=None)
        for name, candidates_of_name in seen.items()
    }
    started = time.monotonic()
    try:
        ours = solve(StepInstance(step.captured.graph, step.parts), Request(limit), time_limit=time_limit)
    except InfeasibleError as error:
        return Row(label, limit, time.monotonic() - started, None, error.smallest, 0.0, theirs)
    seconds = time.monotonic() - started
    kilobytes = len(encode(schedule_of(step, ours, limit, COST, name=label))) / 1e3
    return Row(label, limit, seconds, ours, ours.peak, kilobytes, theirs)


def _summary(row: Row, base: Candidate) -> str:
    if row.ours is None:
        return f"none found, smallest {row.smallest / base.peak:.1%}"
    return f"{row.ours.time / base.time - 1:+.2%}, gap {row.ours.gap:.2%}, {row.ours.strategy}, {row.seconds:.1f} s"


def lines(report: Report) -> str:
    model, base = report.model, report.baseline
    head = ["budget", "", "peak", "overhead", "bound", "gap", "by", "stopped", "solve", "file", *SHORT.values()]
    about = (
        f"{model.name}: {model.describe}; {report.operations:,} operations, prepared in {report.seconds:.1f} s\n"
        f"without recomputation {base.peak / 2**30:.2f} GiB, {base.time / 1e6:.1f} ms; "
        f"target: {model.seconds:g} s, gap {model.gap:.1%}"
    )
    least = ", ".join(f"{SHORT.get(name, name)} {peak / base.peak:.1%}" for name, peak in report.smallest.items())
    shown = table([head, *(_cells(report, row) for row in report.rows)])
    return f"{about}\n{shown}\nsmallest peak: {least}; proven floor {report.floor / base.peak:.1%}\n"


def _cells(report: Report, row: Row) -> list[str]:
    model, base, faster = report.model, report.baseline, row.slower()
    others = []
    for name in SHORT:
        theirs = row.theirs.get(name)
        mark = "!" if name in faster else ""
        others.append("-" if theirs is None else f"{theirs.time / base.time - 1:+.2%}{mark}")
    share, solve = f"{row.budget / base.peak:.1%}", f"{row.seconds:.1f} s"
    if row.ours is None:
        why = "below floor" if row.budget < report.floor else "none found!"
        return [row.label, share, f"{row.smallest / base.peak:.1%}", why, "", "", "", "", solve, "", *others]
    s = row.ours
    return [
        row.label,
        share,
        f"{s.peak / base.peak:.1%}",
        f"{s.time / base.time - 1:+.2%}",
        f"{s.lower_bound / base.time - 1:+.2%}",
        f"{s.gap:.2%}" + ("!" if s.gap > model.gap else ""),
        s.strategy,
        s.stopped_by,
        solve + ("!" if row.seconds > model.seconds else ""),
        f"{row.kilobytes:.0f} kB",
        *others,
    ]


def _import_all() -> None:
    """Plan a small model first, so that imports do not count."""
    layers = [part for _ in range(4) for part in (nn.Linear(32, 32), nn.GELU())]
    remate.plan(nn.Sequential(*layers), (torch.zeros(256, 32),), budget="100%", device=DEVICE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(LARGE), metavar="MODEL", help=f"of {', '.join(LARGE)}")
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="bytes or shares of the baseline peak")
    parser.add_argument("--time-limit", type=float, default=180.0, help="seconds for one solve, default 180")
    parser.add_argument("-o", "--output", type=Path, help="write the tables to this file, too")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.models if name not in LARGE]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; one of {', '.join(LARGE)}")
    torch.set_num_threads(1)
    _import_all()
    command = f"python -m tools.bench.suite {' '.join(chosen.models)} --budgets {chosen.budgets}"
    about = f"{command} --time-limit {chosen.time_limit:g}; step and costs: {DEVICE}; {environment()}"
    text = [about, (__doc__ or "").split("\n\n")[-1]]
    for name in chosen.models:
        text.append(lines(examine(LARGE[name], chosen.budgets.split(","), chosen.time_limit)))
        print(text[-1], flush=True)
    if chosen.output:
        chosen.output.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
