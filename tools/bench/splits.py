"""Language models without and with a split loss head: proven floor, and the extra time at shares of the baseline's peak.

    python -m tools.bench.splits              # all models; others by name
    python -m tools.bench.splits llama

Plans are made with the roofline model of a CPU core, at effort quick. Of the schedules with splits, peaks are read from
the allocator's own events, and step times alternate with those of eager PyTorch, on the CPU with one thread.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import remate
import remate_runtime
from remate.api.plan import prepare
from remate.api.splitting import floor_if_split
from remate.errors import InfeasibleError
from remate.step_measurement.allocator import peak_bytes
from remate.strategy import StepInstance
from remate_runtime.format import Schedule, Split
from remate_runtime.support.quantities import size
from tests.models import ZOO
from tests.models.case import Built

from .text import environment, table

_MODELS: dict[str, Callable[[], Built]] = {
    name: lambda name=name: ZOO[name].build(layers=2, batch=4, vocab=2048) for name in ("gpt2", "llama")
}
_SHARES = ("60%", "40%", "20%")
_PAIRS = 9  # of steps that alternate


class _LossAlone(nn.Module):
    """A model that returns its loss, so that nobody holds its other outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        outputs = self.model(*args, **kwargs)
        loss = getattr(outputs, "loss", outputs)
        return loss if loss.numel() == 1 else loss.float().square().mean()


def rows(name: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for the floors, and one for each share."""
    built, args, kwargs = _MODELS[name]()
    model = _LossAlone(built)
    step = prepare(model, args, kwargs, cost="cpu")
    whole = StepInstance(step.captured.graph, step.parts)
    split = floor_if_split(step, "cpu", 0)
    peak = whole.baseline.peak
    yield name, size(peak), "floor", size(whole.floor), size(split.floor) if split is not None else "–", "", "", ""
    for share in _SHARES:
        plain, tiled = (_planned(model, args, kwargs, share, permitted) for permitted in (None, "head"))
        yield "", "", share, _extra(plain), _extra(tiled), *_measured(model, args, kwargs, tiled)


def _planned(model: nn.Module, args: Any, kwargs: Any, share: str, split: str | None) -> Schedule | None:
    try:
        made = remate.plan(model, args, kwargs, budget=share, cost="cpu", effort="quick", split=split, progress=None)
    except InfeasibleError:
        return None
    assert isinstance(made, Schedule)
    return made


def _extra(schedule: Schedule | None) -> str:
    if schedule is None:
        return "–"
    tiles = next((f" in {one.into}" for one in schedule.statements if isinstance(one, Split)), "")
    return f"{100 * (schedule.solve.time / schedule.solve.baseline_time - 1):+.1f}%{tiles}"


def _measured(model: nn.Module, args: Any, kwargs: Any, schedule: Schedule | None) -> tuple[str, str, str]:
    """Return predicted peak, measured peak, and step time over eager's."""
    if schedule is None:
        return "", "", ""
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = remate_runtime.apply(ours, schedule, verify="never")

    def step(run: nn.Module) -> None:
        run(*args, **kwargs).backward()
        run.zero_grad(set_to_none=True)

    for run in (eager, applied):
        step(run)
    peak = peak_bytes(lambda: applied(*args, **kwargs).backward())
    applied.zero_grad(set_to_none=True)
    ratios = []
    for _ in range(_PAIRS):
        taken = []
        for run in (eager, applied):
            began = time.process_time()
            step(run)
            taken.append(time.process_time() - began)
        ratios.append(taken[1] / taken[0])
    return size(schedule.peak_bytes), size(peak), f"{statistics.median(ratios):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=", ".join(_MODELS))
    torch.set_num_threads(1)
    head = ("model", "baseline", "budget", "no split", "split", "predicted", "measured", "time / eager")
    print(environment())
    found: list[tuple[str, ...]] = [head]
    for name in parser.parse_args().models or list(_MODELS):
        for row in rows(name):
            print(*row, sep="  ", file=sys.stderr, flush=True)
            found.append(row)
    print(table(found))


if __name__ == "__main__":
    main()
