"""A model whose parameters exceed the budget, trained within it: parameters and gradients are paged to files.

    python -m tools.bench.weights [--steps 4]

GPT-2 with 6 layers of width 512 is planned with strategy `weight-offloading` for budgets below the size of its
parameters, and trained with a plain loop (SGD with momentum) beside eager PyTorch. measured: allocations and resident
parameters of a step, as in `remate run`. process: growth of the process's resident memory in a step, sampled each
millisecond. gradients, parameters: compared bit for bit in each step. time: median ratio of alternating steps, and the
range. Bandwidth is measured on this machine.
"""

from __future__ import annotations

import argparse
import copy
import gc
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import nn

from remate import plan
from remate_runtime import Schedule, apply
from remate_runtime.devices.cpu_memory import peak_on_cpu
from remate_runtime.flat_step import expand
from remate_runtime.link import link, simulate
from remate_runtime.support.quantities import size

from .text import environment, table

BUDGETS = ("40MiB", "56MiB", "72MiB")


def model_and_inputs() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=6,
        n_embd=512,
        n_head=8,
        vocab_size=4096,
        n_positions=64,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    ids = torch.randint(0, 4096, (1, 32))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}


class Resident:
    """Growth of this process's resident memory within the context, above its minimum there. Parameters that the optimizer
    has touched are paged out when the step begins."""

    def __enter__(self) -> Resident:
        gc.collect()
        self._on, self._seen = True, [_resident()]
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on = False
        self._thread.join()

    def _sample(self) -> None:
        while self._on:
            self._seen.append(_resident())
            time.sleep(0.001)

    @property
    def grown(self) -> int:
        least = min(self._seen)
        return max(self._seen[self._seen.index(least) :]) - least


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def compare(schedule: Schedule, model: nn.Module, inputs: dict[str, Any], steps: int) -> tuple[str, ...]:
    """Return a row of the table."""
    eager, planned = copy.deepcopy(model), apply(copy.deepcopy(model), schedule)
    optimizers = [torch.optim.SGD(one.parameters(), 0.05, momentum=0.9) for one in (eager, planned)]
    ratios, equal, grown = [], True, 0
    for step in range(steps):
        times = []
        for one in (eager, planned) if step % 2 else (planned, eager):
            with Resident() as resident:
                begun = time.perf_counter()
                one(**inputs).loss.backward()
                times.append((one is planned, time.perf_counter() - begun))
            if one is planned and step:
                grown = max(grown, resident.grown)
        taken = dict(times)
        ratios.append(taken[True] / taken[False])
        pairs = zip(eager.parameters(), planned.parameters(), strict=True)
        equal &= all(torch.equal(a, b) and torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    measured = peak_on_cpu(lambda: planned(**inputs).loss.backward())
    expanded = expand(schedule)
    timeline = simulate(link(expanded.graph, expanded.recomputes, expanded.pages))
    own = sorted(ratios[1:])
    return (
        size(schedule.solve.budget),
        size(schedule.peak_bytes),
        size(measured),
        size(grown),
        size(timeline.paged["disk"]),
        "equal" if equal else "DIFFERENT",
        f"{median(own):.2f} ({own[0]:.2f} to {own[-1]:.2f})",
        f"{schedule.solve.time / schedule.solve.baseline_time:.2f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs = model_and_inputs()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    rows: list[tuple[str, ...]] = [
        ("budget", "predicted", "measured", "process", "in files", "bits", "time / eager", "predicted time")
    ]
    held = 0
    for budget in BUDGETS:
        schedule = plan(model, (), inputs, budget, strategy="weight-offloading", disk_budget="1GiB", progress=None)
        assert isinstance(schedule, Schedule)
        held = schedule.solve.baseline_peak
        rows.append(compare(schedule, model, inputs, args.steps))
    print(environment())
    print(f"parameters {size(parameters)}; eager holds {size(held)} beside them")
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
