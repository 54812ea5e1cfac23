"""Models without and with splits: proven floor, extra time at shares of the baseline's peak, and what was measured.

    python -m tools.bench.splits              # all models; others by name
    python -m tools.bench.splits llama
    python -m tools.bench.splits -o tools/bench/results/splits.txt

Language models split their loss head. Plans of models with convolutions use measured costs, others the roofline model
of a CPU core, at effort quick. Peaks of schedules with splits are read from the allocator's own events. Their step
times alternate with those of eager PyTorch: CPU time with one thread, ratio of each round, median and quartiles.
`tests/docs/test_splits.py` fails if a figure of the roofline model is not what the code gives.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import remate
import remate_runtime
from remate.api.plan import prepare
from remate.api.splitting import floor_if_split
from remate.errors import InfeasibleError
from remate.step_measurement.allocator import compare_times, peak_bytes
from remate.strategy import StepInstance
from remate_runtime.format import Schedule, Split
from remate_runtime.support.quantities import size
from tests.models.case import Built

from .split_models import SPLIT_MODELS, SplitModel
from .text import environment, ratio, selection, table

FLOORS = ("model", "baseline", "floor", "with splits")
TIMES = ("model", "budget", "no split", "split", "predicted", "measured", "time / eager")
SHARES = ("60%", "40%", "20%")
_NONE = "–"
_ROUNDS = 9


def built(subject: SplitModel) -> Built:
    """Return the model and its inputs, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, args, kwargs = subject.build()
    return model.train(), args, kwargs


def floors(name: str) -> tuple[str, ...]:
    """Return a model's row of the first table: its baseline and proven floors."""
    subject = SPLIT_MODELS[name]
    model, args, kwargs = built(subject)
    step = prepare(model, args, kwargs, cost=subject.cost)
    whole = StepInstance(step.captured.graph, step.parts)
    split = floor_if_split(step, subject.cost, 0)
    return name, size(whole.baseline.peak), size(whole.floor), _NONE if split is None else size(split.floor)


def extra_times(name: str, share: str) -> tuple[tuple[str, str], Schedule | None]:
    """Return the extra time without and with splits, as text, and the schedule with splits."""
    subject = SPLIT_MODELS[name]
    model, args, kwargs = built(subject)
    options = {"budget": share, "cost": subject.cost, "effort": "quick"}
    plain, tiled = (planned(model, args, kwargs, split=split, **options) for split in (None, subject.permitted))
    return (_extra(plain), _extra(tiled)), tiled


def times(name: str) -> Iterator[tuple[str, ...]]:
    """Yield a model's rows of the second table, one for each share."""
    model, args, kwargs = built(SPLIT_MODELS[name])
    for share in SHARES:
        extra, tiled = extra_times(name, share)
        yield name, share, *extra, *_measured(model, args, kwargs, tiled)


def planned(model: nn.Module, args: Any, kwargs: Any, **options: Any) -> Schedule | None:
    """Return what `remate.plan` returns with these options; None if no schedule is within the budget."""
    try:
        schedule = remate.plan(model, args, kwargs, progress=None, **options)
    except InfeasibleError:
        return None
    assert isinstance(schedule, Schedule)
    return schedule


def tiles(schedule: Schedule) -> str:
    """Return the numbers of tiles of a schedule as text; "" without splits."""
    numbers = sorted({statement.into for statement in schedule.statements if isinstance(statement, Split)})
    return "–".join(map(str, dict.fromkeys([*numbers[:1], *numbers[-1:]])))


def _extra(schedule: Schedule | None) -> str:
    if schedule is None or schedule.solve.baseline_time is None:
        return _NONE
    words = f" in {numbers}" if (numbers := tiles(schedule)) else ""
    return f"{100 * (schedule.solve.time / schedule.solve.baseline_time - 1):+.1f}%{words}"


def _measured(model: nn.Module, args: Any, kwargs: Any, schedule: Schedule | None) -> tuple[str, str, str]:
    """Return predicted peak, measured peak, and step time over eager's."""
    if schedule is None:
        return _NONE, _NONE, _NONE
    eager, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = remate_runtime.apply(ours, schedule, verify="never")

    def step(run: nn.Module) -> None:
        run(*args, **kwargs).backward()
        run.zero_grad(set_to_none=True)

    step(applied)
    peak = peak_bytes(lambda: applied(*args, **kwargs).backward())
    applied.zero_grad(set_to_none=True)
    ways = {"eager": lambda: step(eager), "split": lambda: step(applied)}
    times = compare_times(ways, _ROUNDS, clock=time.process_time_ns)
    return size(schedule.peak_bytes), size(peak), ratio(times, "split")


def main() -> None:
    names, output = selection(__doc__, SPLIT_MODELS, "model")
    torch.set_num_threads(1)
    lines: list[tuple[str, ...]] = [TIMES]
    for name in names:
        for row in times(name):
            print(*row, sep="  ", file=sys.stderr, flush=True)
            lines.append(row)
    about = "\n".join(f"{name}: {SPLIT_MODELS[name].describe}; {SPLIT_MODELS[name].cost} costs" for name in names)
    head = f"python -m tools.bench.splits; {environment()}\n{about}"
    text = f"{head}\n\n{table([FLOORS, *map(floors, names)])}\n\n{table(lines)}\n"
    print(text, end="")
    if output:
        Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
