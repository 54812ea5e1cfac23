"""Compares the engine `arena` with `eager`: size of its block, peaks and CPU time.

    python -m tools.bench.arena [NAME...] [--rounds 9]

Schedules of 100 % (no recomputations) and 60 % of the peak. Times: steps of both
engines alternate, on one thread, in CPU time of the thread, and include setting gradients to None. Peaks: from the
profiler's memory events of a first step, including block and gradients. Later steps reuse the block. Writes
results/arena.txt if all models are requested.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from remate import plan
from remate.step_measurement.allocator import compare_times, peak_bytes
from remate_runtime import apply, predicted_peak
from tests.models.case import Built
from tests.models.convolutional import resnet, unet
from tests.models.decoders import gpt2, tiny_gpt
from tests.models.encoders import vit
from tests.models.recurrent import state_space
from tests.runtime.stepping import loss_of

from .text import environment, table

RESULTS = Path(__file__).parent / "results" / "arena.txt"
MODELS: dict[str, tuple[str, Callable[[], Built]]] = {
    "gpt2": ("GPT-2, 4 layers of 256, 8×128 tokens, dropout", lambda: gpt2(4, 256, 4, 8, 128, 1024)),
    "gpt": ("a decoder of 4 layers of 256, 8×128 tokens", lambda: tiny_gpt(4, 256, 4, 8, 128)),
    "vit": ("ViT, 4 layers of 192, 16 images of 32×32", lambda: vit(4, 192, 4, 16, 32, 4)),
    "state-space": ("state space model, 2 layers of 32 over 16 steps", state_space),
    "resnet": ("ResNet, width 32, 16 images of 32×32", lambda: resnet(32, 2, 16, 32)),
    "unet": ("U-Net, width 16, 4 images of 64×64", lambda: unet(16, 3, 4, 64)),
}
MIB = 2**20
ENGINES = ("eager", "arena")


class Shares(logging.Handler):
    """Reads the size of the block from the engine's log, in percent of the bytes that operators allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.percent = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.endswith("arena_engine") and isinstance(record.args, tuple):
            self.percent = float(str(record.args[1]))


def step(model: Any, args: Any, kwargs: Any) -> None:
    model.zero_grad()
    outputs = model(*args, **kwargs)
    loss_of(outputs).backward()


def gradients(model: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    step(model, args, kwargs)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def row(name: str, budget: str, rounds: int, shares: Shares) -> tuple[str, ...]:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name][1]()
    schedule = plan(model, args, kwargs, budget=budget, cost="cpu")
    ours = [apply(copy.deepcopy(model), schedule, engine=engine) for engine in ENGINES]
    step(copy.deepcopy(model), args, kwargs)  # libraries warm up
    predicted = [predicted_peak(one) for one in ours]
    peaks = [peak_bytes(lambda one=one: step(one, args, kwargs)) for one in ours]
    steps = {engine: partial(step, one, args, kwargs) for engine, one in zip(ENGINES, ours, strict=True)}
    times = compare_times(steps, rounds, clock=time.thread_time_ns)
    low, high = times.quartiles["arena"]
    equal = all(map(torch.equal, *(gradients(one, args, kwargs) for one in ours)))
    return (
        name,
        budget,
        f"{shares.percent:.1f}",
        *(f"{nbytes / MIB:.1f}" for nbytes in (predicted[0], peaks[0], predicted[1], peaks[1])),
        *(f"{times.median[engine] / 1e6:.1f}" for engine in ENGINES),
        f"{times.ratio['arena']:.3f}",
        f"{low:.3f}-{high:.3f}",
        "yes" if equal else "no",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    shares, log = Shares(), logging.getLogger("remate_runtime")
    log.addHandler(shares)
    log.setLevel(logging.INFO)
    head = ("", "budget", "% in block", "eager: predicted", "measured", "arena: predicted", "measured")
    lines: list[tuple[str, ...]] = [(*head, "eager, ms", "arena, ms", "ratio", "half within", "bitwise")]
    for name in args.names:
        for budget in ("100%", "60%"):
            lines.append(row(name, budget, args.rounds, shares))
            print(*lines[-1], flush=True)
    about = "\n".join(f"{name}: {MODELS[name][0]}" for name in args.names)
    text = f"python -m tools.bench.arena; {environment()}\nPeaks in MiB. The machine was busy with other work.\n\n{about}\n\n{table(lines)}\n"
    print(text)
    if args.names == list(MODELS):
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
