"""Compares predicted and measured peaks of compiled steps.

    python -m tools.bench.compiled_memory [--models gpt2,resnet,…] [--budgets 50%,70%,90%] [--update]

Each model is planned at each budget, applied with engine="compiled", and run for two steps; allocator events
measure the second. `over` is measured minus predicted, in bytes. The last column is the measured peak as a share of the
budget. Compilation dominates the time, so some models have fewer layers than in the tests (`SMALLER`).
"""

from __future__ import annotations

import argparse
import copy
import gc
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from remate import InfeasibleError, plan
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply, predicted_peak
from remate_runtime.staleness import clear_gradients, training_step
from tests.models import ZOO

from .text import environment, table

RESULTS = Path(__file__).parent / "results" / "compiled_memory.txt"
NOTE = "+8: the loss of a loop, and its gradient of 1, where the model returns none and the step has none to count."
HEAD = ("model", "budget", "predicted", "measured", "over", "measured/budget")
SMALLER: dict[str, dict[str, Any]] = {
    "bert": {"layers": 2},
    "t5": {"layers": 1},
    "vit": {"layers": 2},
    "two_tower": {"layers": 1},
    "llama": {"layers": 2},
    "moe": {"layers": 2},
    "tiny_gpt": {"layers": 2},
    "mlp_mixer": {"layers": 2},
    "fourier": {"layers": 2},
    "gated_convolution": {"layers": 2},
    "regnet": {"blocks": 1},
    "depthwise": {"blocks": 2},
    "unet": {"depth": 2},
}


def row(name: str, budget: str) -> tuple[str, ...]:
    model, args, kwargs = ZOO[name].build(**SMALLER.get(name, {}))
    try:
        schedule = plan(model, args, kwargs, budget=budget)
    except InfeasibleError:
        return name, budget, "below the floor", "", "", ""
    planned: Any = apply(copy.deepcopy(model), schedule, engine="compiled")

    measured = 0
    for _ in range(2):
        clear_gradients(planned, args, kwargs)
        measured = peak_bytes(lambda: training_step(planned, args, kwargs))  # keeps the outputs, as a training loop may
    predicted, limit = predicted_peak(planned), schedule.solve.budget
    return name, budget, f"{predicted:,}", f"{measured:,}", f"{measured - predicted:+,}", f"{measured / limit:.4f}"


def main() -> None:
    """Print a row per model and budget after its measurement; with --update, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(ZOO))
    parser.add_argument("--budgets", default="50%,70%,90%")
    parser.add_argument("--update", action="store_true", help="write results/compiled_memory.txt")
    requested = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    rows = _stored() if requested.update else {}
    for name in requested.models.split(","):
        for budget in requested.budgets.split(","):
            rows[name, budget] = row(name, budget)
            print("  ".join(rows[name, budget]), flush=True)
            gc.collect()
            if requested.update:
                RESULTS.write_text(f"{environment()}\n{NOTE}\n\n{_table(rows)}\n", encoding="utf-8")
    sys.stdout.write(f"{_table(rows)}\n")


def _table(rows: dict[tuple[str, str], tuple[str, ...]]) -> str:
    order = sorted(rows, key=lambda about: ([*ZOO].index(about[0]), int(about[1].rstrip("%"))))
    return table([HEAD, *(rows[about] for about in order)])


def _stored() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return rows of earlier runs by model and budget, because a run may measure only some of them."""
    if not RESULTS.exists():
        return {}
    rows = [re.split(r"\s{2,}", line.strip()) for line in RESULTS.read_text(encoding="utf-8").splitlines()[5:]]
    return {(row[0], row[1]): (*row, *[""] * (len(HEAD) - len(row))) for row in rows}


if __name__ == "__main__":
    main()
