"""Measures the effect of budgets on each model: peak, step time and gradients, beside eager PyTorch.

    python -m tools.bench.budgets                      # every model of tests/models and every example
    python -m tools.bench.budgets resnet examples/gpt2.py --budgets 100%,50%

Peak: most bytes of a step beside parameters, buffers, inputs and optimizer state; outputs, gradients and workspace
count. Time: forward and backward, as a ratio to eager in the same round; median of alternating rounds, ± half the
interquartile range. Overhead: predicted time over the baseline. Gradients: largest difference of an element from
eager, relative to the largest element of its gradient.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import remate
import remate_runtime
from remate.step_measurement.allocator import Times, compare_times, peak_bytes
from remate_runtime.errors import RemateError
from remate_runtime.format import Schedule
from remate_runtime.staleness import NumericalDifference, clear_gradients, compare_models, training_step
from remate_runtime.support.quantities import size
from tests.models import ZOO
from tests.models.case import Built

from .text import environment, table

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results")
BUDGETS = ("100%", "80%", "60%", "40%")


class Row(msgspec.Struct, frozen=True):
    """One model at one budget. `failed` is the reason if it has no schedule."""

    budget: str
    schedule: Schedule | None = None
    peak: int = 0
    seconds: float = 0.0
    difference: NumericalDifference | None = None
    failed: str = ""


def builder(name: str) -> Callable[[], Built]:
    """Return a model of tests/models, or of a script with `build()`."""
    if name in ZOO:
        return ZOO[name].build
    path = ROOT / name
    if path.suffix != ".py" or not path.is_file():
        raise SystemExit(f"{name} is neither a script nor one of: {', '.join(ZOO)}")
    build_of_file = runpy.run_path(str(path), run_name="bench")["build"]

    def build() -> Built:
        model, args, *rest = build_of_file()
        return model, tuple(args), dict(rest[0]) if rest else {}

    return build


def measure(
    name: str, budgets: Sequence[str], repeats: int, options: Mapping[str, Any]
) -> tuple[int, list[Row], Times]:
    """Return the peak of eager, one row per budget, and all step times."""
    model, args, kwargs = builder(name)()
    steps: dict[str, Callable[[], Any]] = {"eager": lambda: training_step(model, args, kwargs)}
    rows: list[Row] = []
    for budget in budgets:
        started = time.monotonic()
        try:
            schedule = remate.plan(model, args, kwargs, budget=budget, at=None, **options)
        except RemateError as error:
            rows.append(Row(budget, failed=str(error).splitlines()[0]))
            continue
        seconds = time.monotonic() - started
        ours = remate_runtime.apply(model, schedule)
        difference = compare_models(model, ours, args, kwargs, steps=2)
        rows.append(Row(budget, schedule, _peak(ours, args, kwargs), seconds, difference))
        steps[budget] = _step(ours, args, kwargs)
    return _peak(model, args, kwargs), rows, compare_times(steps, repeats)


def _step(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: training_step(model, args, kwargs)


def _peak(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the peak of a warm step. Gradients are freed before it, so that they count."""
    step = _step(model, args, kwargs)
    step()
    clear_gradients(model, args, kwargs)
    peak = peak_bytes(step)
    clear_gradients(model, args, kwargs)
    return peak


def lines(eager: int, rows: Sequence[Row], times: Times) -> str:
    head = (
        "budget",
        "bytes",
        "predicted",
        "measured",
        "off",
        "overhead",
        "time / eager",
        "gradients",
        "gap",
        "planned in",
    )
    out = [head, ("eager", "", "", size(eager), "", "", "1", "", "", "")]
    for row in rows:
        if row.schedule is None or row.difference is None:
            out.append((row.budget, row.failed, *[""] * 8))
            continue
        s = row.schedule
        verdict = "" if row.peak <= s.budget_bytes else "!"
        out.append(
            (
                row.budget,
                size(s.budget_bytes),
                size(s.peak_bytes),
                size(row.peak) + verdict,
                f"{row.peak / s.peak_bytes - 1:+.2%}",
                f"{s.time_ns / s.baseline_time_ns - 1:+.1%}",
                f"{times.ratio[row.budget]:.3f} ± {times.spread[row.budget]:.3f}",
                "bitwise" if row.difference.bitwise else f"{row.difference.relative:.1e}",
                "" if s.solve.gap is None else f"{s.solve.gap:.2%}",
                f"{row.seconds:.1f} s",
            )
        )
    return table(out)


def main() -> None:
    examples = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py"))
    every = [*ZOO, *examples]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", default=every, metavar="MODEL", help="name in tests/models, or FILE.py with build()"
    )
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="bytes or shares of the baseline peak")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of timing, default 9")
    parser.add_argument("--cost", default="measured", help="as of `remate plan`, default measured")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for the solver at one budget, default 60")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    text = [f"python -m tools.bench.budgets; costs: {chosen.cost}; {environment()}", (__doc__ or "").split("\n\n")[-1]]
    for name in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "profile.json" if chosen.cost == "measured" else None
            options = {"cost": chosen.cost, "profile": profile, "time_limit": chosen.time_limit}
            measured = measure(name, chosen.budgets.split(","), chosen.repeats, options)
        text.append(f"{name}\n{lines(*measured)}\n")
        print(text[-1], file=sys.stderr, flush=True)
    joined = "\n".join(text)
    print(joined)
    if list(chosen.models) == every and chosen.budgets == ",".join(BUDGETS):
        (RESULTS / "budgets.txt").write_text(joined, encoding="utf-8")


if __name__ == "__main__":
    main()
