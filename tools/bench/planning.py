"""Measures CPU seconds of planning by stage, without imports, for one size and for all batch sizes.

    python -m tools.bench.planning -o tools/bench/results/planning.txt

Models have realistic sizes and no storage. The step is that of CUDA on an H200, captured without one, with costs of its
roofline model; Llama 3 405B is sharded over 512 ranks. The budget is 60 % of the baseline peak. One process plans all
models, and first a small model, so that imports do not count. `separately`: each of equal blocks is traced, instead of
one for all.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import remate
from remate.capture.repeats import tracing

from .gpu_steps import STEPS
from .models import LARGE
from .text import environment, table

MODELS = ("gpt2", "gpt2-xl", "llama3-405b")
STAGES = ("tracing", "fitting and pricing", "partition, solving, writing")


def seconds(name: str, dims: str | None, before: bool) -> tuple[list[float], int]:
    """CPU seconds of each stage, and the number of traces."""
    model, args, kwargs = (LARGE | STEPS)[name].build()
    marks: list[tuple[float, str]] = []
    options: dict[str, Any] = {"dims": dims, "progress": lambda text: marks.append((time.process_time(), text))}
    if name in STEPS:
        options |= {"fsdp": STEPS[name].sharded, "shards": STEPS[name].shards}
    candidates = (lambda model: {}) if before else tracing.candidates
    with mock.patch.object(tracing, "candidates", candidates):
        start = time.process_time()
        remate.plan(model, args, kwargs, budget="60%", device="cuda:h200", **options)
        end = time.process_time()
    traced = [at for at, (_, text) in enumerate(marks) if text.startswith("tracing")]
    priced = marks[traced[-1] + 1][0]
    solving = next(mark for mark, text in marks if text.startswith("finding repeated blocks"))
    return [priced - start, solving - priced, end - solving], len(traced)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    parser.add_argument("--models", nargs="+", choices=sorted(LARGE | STEPS), default=MODELS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    seconds("gpt2", "auto", False)  # imports
    rows: list[tuple[str, ...]] = [("", "dims", "blocks", "traces", *STAGES, "all")]
    for name in chosen.models:
        for dims in (None,) if name in STEPS else (None, "auto"):
            for before in (True, False):
                spent, traces = seconds(name, dims, before)
                ways = "separately" if before else "once"
                figures = (f"{each:.1f}" for each in (*spent, sum(spent)))
                rows.append((name, dims or "none", ways, str(traces), *figures))
                print(rows[-1], flush=True)
    text = f"python -m tools.bench.planning; step and costs: cuda:h200; {environment()}\n\n{table(rows)}\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
