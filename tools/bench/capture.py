"""Measures CPU seconds of capture per operation, for models with and without repeated modules.

    python -m tools.bench.capture -o tools/bench/results/capture.txt

Models have realistic sizes and no storage; the step is that of the CPU. Each model is captured once before the
measurement, so that imports do not count. Beside it are the CPU seconds in which `torch.compile(backend="aot_eager",
fullgraph=True)` traces the same step, with its symbolic interpreter and without a compiler, at the second of two calls.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from remate.capture.capture_step import capture
from tests.models.case import Built

from .low_budget_models import MODELS
from .models import on_meta
from .overhead import Sequence
from .text import environment, table

NAMES = ("gpt2", "llama", "vit", "convnext", "swin", "t5", "lstm", "mamba", "gru")


def _gru() -> Built:
    return Sequence(nn.GRU, 256, 256), (torch.zeros(32, 64, 256),), {}


SUBJECTS: dict[str, tuple[str, Callable[[], Built]]] = {
    **MODELS,
    "gru": ("GRU of 256, 32 sequences of 64 steps", on_meta(_gru)),
}


def seconds(name: str) -> tuple[float, int]:
    """Return the CPU seconds of a capture, and the number of operations, including views."""
    model, args, kwargs = SUBJECTS[name][1]()
    capture(model, args, kwargs)
    start = time.process_time()
    captured = capture(model, args, kwargs)
    return time.process_time() - start, len(captured.graph.operations)


def seconds_of_compile(name: str) -> float | None:
    """Return the CPU seconds in which torch.compile traces the step; None if it has no single graph."""
    from torch._dynamo.exc import Unsupported

    model, args, kwargs = SUBJECTS[name][1]()
    spent = 0.0
    try:
        for _ in range(2):
            torch.compiler.reset()
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            start = time.process_time()
            compiled(*args, **kwargs)
            spent = time.process_time() - start
    except Unsupported:
        return None
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    parser.add_argument("--models", nargs="+", choices=sorted(SUBJECTS), default=NAMES)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[tuple[str, ...]] = [("", "operations", "CPU s", "ms per operation", "torch.compile, CPU s")]
    for name in chosen.models:
        spent, operations = seconds(name)
        compiled = seconds_of_compile(name)
        rows.append(
            (
                SUBJECTS[name][0],
                str(operations),
                f"{spent:.1f}",
                f"{1000 * spent / operations:.2f}",
                "no single graph" if compiled is None else f"{compiled:.1f}",
            )
        )
        print(rows[-1], flush=True)
    text = f"python -m tools.bench.capture; {environment()}\n\n{table(rows)}\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
