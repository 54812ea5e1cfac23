"""Models without and with splits: proven floor, extra time at shares of the baseline's peak, and what was measured.

    python -m tools.bench.splits              # all models; others by name
    python -m tools.bench.splits llama
    python -m tools.bench.splits -o tools/bench/results/splits.txt
    python -m tools.bench.splits llama -o tools/bench/results/splits.txt  # the rows of other models stay

Language models split their loss head. Plans of models with convolutions use measured costs, others the roofline model
of a CPU core, at effort quick. All plans of a model share their measured costs, which no cache of the user changes.
Peaks of schedules with splits are read from the allocator's own events. Their step times alternate with those of eager
PyTorch: CPU time with one thread, ratio of each round, median and quartiles. The C library keeps freed memory, as else
the system clears new pages for a larger part of eager's step.
`tests/docs/test_splits.py` fails if a figure of the roofline model is not what the code gives.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import remate
import remate_runtime
from remate.api.options import PlanOptions
from remate.api.plan import prepare
from remate.api.splitting import floor_if_split
from remate.errors import InfeasibleError
from remate.step_measurement.allocator import compare_times, peak_bytes
from remate.strategy import StepInstance
from remate_runtime.format import Schedule, Split
from remate_runtime.support.quantities import size
from tests.models.case import Built
from tools.documentation.results import cells

from .split_models import SPLIT_MODELS, SplitModel
from .text import environment, ratio, selection, table

FLOORS = ("model", "baseline", "floor", "with splits")
TIMES = ("model", "budget", "no split", "split", "predicted", "measured", "time / eager")
SHARES = ("60%", "40%", "20%")
_NONE = "–"
_ROUNDS = 9
_MALLOPT = ((-3, 32 << 20), (-1, 1 << 30))  # malloc.h: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, with bytes


def built(subject: SplitModel) -> Built:
    """Return the model and its inputs, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, args, kwargs = subject.build()
    return model.train(), args, kwargs


def floors(name: str, profile: Path | None = None) -> tuple[str, ...]:
    """Return a model's row of the first table: its baseline and proven floors. profile: the file of measured costs."""
    subject = SPLIT_MODELS[name]
    model, args, kwargs = built(subject)
    step = prepare(model, args, kwargs, cost=subject.cost, options=PlanOptions(profile=profile))
    whole = StepInstance(step.captured.graph, step.parts)
    split = floor_if_split(step, subject.cost, 0)
    return name, size(whole.baseline.peak), size(whole.floor), _NONE if split is None else size(split.floor)


def extra_times(name: str, share: str, profile: Path | None = None) -> tuple[tuple[str, str], Schedule | None]:
    """Return the extra time without and with splits, as text, and the schedule with splits.

    profile: The file of measured costs.
    """
    subject = SPLIT_MODELS[name]
    model, args, kwargs = built(subject)
    options = {"budget": share, "cost": subject.cost, "effort": "quick", "profile": profile}
    plain, tiled = (planned(model, args, kwargs, split=split, **options) for split in (None, subject.permitted))
    return (_extra(plain), _extra(tiled)), tiled


def times(name: str, profile: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield a model's rows of the second table, one for each share."""
    model, args, kwargs = built(SPLIT_MODELS[name])
    for share in SHARES:
        extra, tiled = extra_times(name, share, profile)
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


class _Rows(NamedTuple):
    """What the file says about a model.

    Attributes:
        about: The model, its costs, and where it was measured.
        floors: Its row of the first table.
        times: Its rows of the second table.
    """

    about: str
    floors: tuple[str, ...]
    times: list[tuple[str, ...]]


def _kept(path: Path | None, names: Collection[str]) -> dict[str, _Rows]:
    """Return what a file says by model, without the models with these names."""
    about, kept = dict[str, str](), dict[str, _Rows]()
    for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
        name, colon, _ = line.partition(":")
        row = tuple(cells(line))
        if colon and name in SPLIT_MODELS:
            about[name] = line
        elif row[0] in names or row[0] not in SPLIT_MODELS:
            continue
        elif len(row) == len(FLOORS):
            kept[row[0]] = _Rows(about[row[0]], row, [])
        else:
            kept[row[0]].times.append(row)
    return kept


def _rows(name: str, folder: Path) -> _Rows:
    """Measure a model."""
    subject = SPLIT_MODELS[name]
    profile = folder / f"{name}.json" if subject.cost == "measured" else None
    rows = _Rows(f"{name}: {subject.describe}; {subject.cost} costs; {environment()}", floors(name, profile), [])
    for row in times(name, profile):
        print(*row, sep="  ", file=sys.stderr, flush=True)
        rows.times.append(row)
    return rows


def main() -> None:
    names, output = selection(__doc__, SPLIT_MODELS, "model")
    torch.set_num_threads(1)
    if sys.platform == "linux":
        for parameter, nbytes in _MALLOPT:
            ctypes.CDLL(None).mallopt(parameter, nbytes)
    by_name = _kept(output, names)
    with tempfile.TemporaryDirectory() as folder:
        by_name.update({name: _rows(name, Path(folder)) for name in names})
    rows = [by_name[name] for name in SPLIT_MODELS if name in by_name]
    head = "\n".join(["python -m tools.bench.splits", *(row.about for row in rows)])
    first, second = [FLOORS, *(row.floors for row in rows)], [TIMES, *(time for row in rows for time in row.times)]
    text = f"{head}\n\n{table(first)}\n\n{table(second)}\n"
    print(text, end="")
    if output:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
