"""PyTorch's own ways to train in less memory beside remate: same models, same harness, one process per configuration.

    python -m tools.bench.peers -o tools/bench/results/peers.txt   # everything; torch.compile takes most of the time
    python -m tools.bench.peers --models unet --only eager,checkpoint,remate-60
    python -m tools.bench.peers --models unet --only eager,remate-60,remate-60-compiled --rounds 9

Peak: bytes that a step holds at its worst moment beyond parameters, buffers, inputs and optimizer state; outputs,
gradients and workspace count. Step: CPU time of forward and backward, median. Planning: what it takes before the first
step, CPU time and time on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import remate
import remate_runtime
from remate.measure.allocator import compare_times, peak_bytes
from remate_runtime.errors import RemateError
from remate_runtime.live import clear_gradients, training_step
from remate_runtime.quantities import size

from .subjects import SUBJECTS, Subject
from .text import environment, table


class Figures(msgspec.Struct, frozen=True):
    """peak: bytes. step, planning, wall: seconds. failed: why there are none."""

    peak: int = 0
    step: float = 0.0
    planning: float = 0.0
    wall: float = 0.0
    failed: str = ""


Prepare = Callable[[nn.Module, Subject, tuple[Any, ...], dict[str, Any]], nn.Module]


def eager(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    return model


def checkpointed(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    return checkpointed_blocks(model, subject.blocks(model))


def selective(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Per block, but the results of products, convolutions and fused attention are kept."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    ops = torch.ops.aten
    kept = [
        ops.mm.default,
        ops.addmm.default,
        ops.bmm.default,
        ops.convolution.default,
        ops._scaled_dot_product_flash_attention_for_cpu.default,
    ]
    return checkpointed_blocks(
        model, subject.blocks(model), context_fn=lambda: create_selective_checkpoint_contexts(kept)
    )


def checkpointed_blocks(model: nn.Module, blocks: Sequence[nn.Module], **options: Any) -> nn.Module:
    """The model, whose `blocks` are checkpointed one by one. options: of torch.utils.checkpoint."""
    from torch.utils.checkpoint import checkpoint

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    for block in blocks:
        block.forward = wrapped(block.forward)
    return model


def compiled(budget: float | None, blocks: bool = False) -> Prepare:
    def prepare(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        import torch._functorch.config as functorch
        import torch._inductor.config as inductor

        inductor.force_disable_caches = True
        if budget is not None:
            functorch.activation_memory_budget = budget
        made: Any = torch.compile(checkpointed(model, subject, args, kwargs) if blocks else model)
        return made

    return prepare


def planned(budget: str | int, engine: str = "eager") -> Prepare:
    def prepare(model: nn.Module, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        return remate_runtime.apply(model, remate.plan(model, args, kwargs, budget=budget), engine=engine)

    return prepare


CONFIGURATIONS: dict[str, tuple[str, Prepare]] = {
    "eager": ("eager", eager),
    "checkpoint": ("checkpoint per block", checkpointed),
    "selective": ("selective checkpointing", selective),
    "compile": ("torch.compile", compiled(None)),
    "compile-50": ("compile, memory budget .5", compiled(0.5)),
    "compile-10": ("compile, memory budget .1", compiled(0.1)),
    "compile-checkpoint": ("compile over checkpoint", compiled(None, blocks=True)),
    "remate-100": ("remate, budget 100%", planned("100%")),
    "remate-80": ("remate, budget 80%", planned("80%")),
    "remate-60": ("remate, budget 60%", planned("60%")),
    "remate-40": ("remate, budget 40%", planned("40%")),
    "remate-30": ("remate, budget 30%", planned("30%")),
    **{
        f"remate-{share}-compiled": (f"remate compiled, budget {share}%", planned(f"{share}%", "compiled"))
        for share in (100, 80, 60, 40, 30)
    },
}
AT_CHECKPOINT = "remate-checkpoint"  # remate at the peak that checkpointing per block was measured at


def measure(subject: Subject, prepare: Prepare, repeats: int) -> Figures:
    """One configuration, in this process."""
    model, args, kwargs = subject.build()
    cpu, wall = time.process_time(), time.monotonic()
    try:
        made = prepare(model, subject, args, kwargs)
    except RemateError as error:
        return Figures(failed=str(error).splitlines()[0])

    def step() -> None:
        training_step(made, args, kwargs)

    first = time.process_time()
    step()
    first = time.process_time() - first
    taken = [_cpu_seconds(step) for _ in range(repeats)]
    usual = statistics.median(taken)
    planning = time.process_time() - cpu - sum(taken) - usual  # torch.compile works in the first step
    on_the_wall = max(0.0, time.monotonic() - wall - sum(taken) - usual)
    clear_gradients(made, args, kwargs)
    return Figures(peak_bytes(step), usual, max(0.0, planning), on_the_wall)


def _cpu_seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def in_process(name: str, configuration: str, repeats: int, limit: float) -> Figures:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "tools.bench.peers", "--one", name, configuration, "--repeats", str(repeats)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, cwd=Path(__file__).parents[2], env=os.environ
        )
    except subprocess.TimeoutExpired:
        return Figures(failed=f"not done after {limit:.0f} s")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return Figures(failed=f"stopped with {done.returncode}: {reason[:100]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Figures)


def compare(name: str, only: list[str], repeats: int, limit: float) -> str:
    """The table of one model."""
    rows = [("", "peak", "step, CPU", "planning, CPU", "planning, wall")]
    found: dict[str, Figures] = {}
    for key in only:
        configuration, label = key, CONFIGURATIONS.get(key, ("",))[0]
        if key == AT_CHECKPOINT:
            bar = found.get("checkpoint")
            if bar is None or bar.failed:
                continue
            configuration, label = f"remate={bar.peak}", f"remate, budget {size(bar.peak)}"
        figures = found[key] = in_process(name, configuration, repeats, limit)
        print(f"{name} {key}: {figures}", file=sys.stderr, flush=True)
        if figures.failed:
            rows.append((label, figures.failed, "", "", ""))
        else:
            planning, wall = (f"{s:.1f} s" if key != "eager" else "" for s in (figures.planning, figures.wall))
            rows.append((label, size(figures.peak), f"{figures.step:.3f} s", planning, wall))
    return f"{name}: {SUBJECTS[name].describe}\n{table(rows)}\n"


def rotated(name: str, only: list[str], rounds: int) -> str:
    """The table of one model, all configurations in this process: they take turns, so that what else the machine does meets
    all of them. Times are ratios of CPU time to the first, within a round."""
    steps: dict[str, Callable[[], Any]] = {}
    peaks: dict[str, int] = {}
    subject, rows = SUBJECTS[name], [("", "peak", "CPU time / first", "half of the rounds within")]
    for key in only:
        model, args, kwargs = subject.build()
        label, prepare = CONFIGURATIONS[key]
        try:
            made = prepare(model, subject, args, kwargs)
        except RemateError as error:
            rows.append((label, str(error).splitlines()[0], "", ""))
            continue
        step = partial(training_step, made, args, kwargs)
        for _ in range(2):  # torch.compile works in the first
            step()
        clear_gradients(made, args, kwargs)
        peaks[label] = peak_bytes(step)
        steps[label] = step
        print(f"{name} {key}: {peaks[label]} bytes", file=sys.stderr, flush=True)
    times = compare_times(steps, rounds, clock=time.process_time_ns)
    for label in steps:
        rows.append((label, size(peaks[label]), f"{times.ratio[label]:.3f}", f"±{times.spread[label]:.3f}"))
    return f"{name}: {subject.describe}\n{table(rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*CONFIGURATIONS, AT_CHECKPOINT]
    parser.add_argument("--models", default=",".join(SUBJECTS), help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--only", default=",".join(every), help=f"of {', '.join(every)}")
    parser.add_argument("--repeats", type=int, default=5, help="steps timed, default 5")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one configuration, default 900")
    parser.add_argument("--rounds", type=int, help="all in one process, which take turns so many times")
    parser.add_argument("-o", "--output", type=Path, help="write the tables to this file, too")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "CONFIGURATION"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.one:
        name, configuration = chosen.one
        exact = configuration.partition("=")[2]
        prepare = planned(int(exact)) if exact else CONFIGURATIONS[configuration][1]
        print(json.dumps(msgspec.to_builtins(measure(SUBJECTS[name], prepare, chosen.repeats))))
        return
    only = chosen.only.split(",")
    if chosen.rounds:
        tables = [rotated(name, only, chosen.rounds) for name in chosen.models.split(",")]
    else:
        tables = [compare(name, only, chosen.repeats, chosen.limit) for name in chosen.models.split(",")]
    command = " ".join(["python -m tools.bench.peers", *sys.argv[1:]])
    text = "\n".join([f"{command}; {environment()}", (__doc__ or "").split("\n\n")[-1], *tables])
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
