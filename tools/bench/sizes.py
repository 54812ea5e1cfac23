"""Trains one schedule at many sizes beside eager, and measures its peaks.

    python -m tools.bench.sizes -o tools/bench/results/sizes.txt

The models of tools/bench/sized_models.py; costs measured, once; budget: a share of the peak without recomputation at
the planned size. Sizes: the ends of the range in all combinations, the planned one, odd ones, and random ones.
`bitwise`: number of sizes at which loss, gradients and buffers equal those of eager to the last bit in two steps. `as
predicted`: number of sizes at which the measured peak equals the file's to the byte. `at most over`: largest excess of
the prediction elsewhere, where an operator's workspace is an estimate (named). `check says within`: number of sizes at
which `remate check` says that the budget holds, by its list of largest sizes; `within`: those of them at which it held.
`recomputes`: at the planned size, and the number of sizes that need fewer or none.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import remate
import remate_runtime
from remate.profile.costing import MEASURED, costed
from remate.schedule_tools.sizes import BudgetedRange, over_range
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import Schedule
from remate_runtime.flat_step import expand
from remate_runtime.format import Dimension, spelled
from remate_runtime.link import fitted, link, simulate
from remate_runtime.staleness import clear_gradients, tensors_of, training_step

from .sized_models import CASES, Call, Case
from .text import environment, table

_SIZES = 24  # per file


class AtSize(msgspec.Struct, frozen=True):
    """off: the largest difference from eager in a loss, gradient or buffer, over its largest number; 0: none in any
    bit. measured: the peak of a step. predicted: by the file; exact: by what operators need there as measured at this
    size. within: `check` says that the budget holds. recomputes: of the step there."""

    sizes: dict[str, int]
    off: float
    measured: int
    predicted: int
    exact: int
    within: bool
    recomputes: int


class Outcome(msgspec.Struct, frozen=True):
    """bounds: what planning said of workspaces that are estimates. longer: the file's text over that of a file for the
    planned size."""

    schedule: Schedule
    bounds: tuple[str, ...]
    sizes: tuple[AtSize, ...]
    longer: float


def sizes_of(case: Case, dims: Mapping[str, Dimension], count: int = _SIZES) -> list[tuple[int, ...]]:
    """The planned ones, those of the case, all corners of the range, and others by chance (the same each time)."""
    ranges = [range(dims[name].min, dims[name].max + 1, dims[name].multiple) for name in case.names]
    corners = itertools.product(*((each[0], each[-1]) for each in ranges))
    sizes = dict.fromkeys((case.planned, *case.at, *corners))
    chance = random.Random(0)
    while len(sizes) < min(count, math.prod(map(len, ranges))):
        sizes.setdefault(tuple(map(chance.choice, ranges)))
    return list(sizes)


def outcome(case: Case, budget: str, *, count: int = _SIZES, **options: Any) -> Outcome:
    """Plan a model once, and train it at `count` sizes or more. `options` are those of `plan`."""
    torch.manual_seed(0)
    model = case.make().train()
    args, kwargs = case.call(*case.planned)
    said: list[str] = []
    schedule = remate.plan(model, args, kwargs, budget, dims=case.dims, progress=said.append, **options)
    plain = remate.plan(model, args, kwargs, budget, **options)
    assert isinstance(schedule, Schedule)
    allowed = over_range(schedule)
    applied = remate_runtime.apply(model, schedule)
    every = (
        _at(dict(zip(case.names, sizes, strict=True)), case.call(*sizes), schedule, model, applied, allowed)
        for sizes in sizes_of(case, schedule.model.dims, count)
    )
    bounds = tuple(text for text in said if "workspace is an estimate" in text)
    longer = len(remate_runtime.format.checked_text(schedule)) / len(remate_runtime.format.checked_text(plain))
    return Outcome(schedule, bounds, tuple(every), longer)


def _at(
    sizes: dict[str, int], call: Call, schedule: Schedule, ours: nn.Module, applied: nn.Module, allowed: BudgetedRange
) -> AtSize:
    theirs = copy.deepcopy(ours)
    pairs = zip(_two_steps(theirs, theirs, call), _two_steps(ours, applied, call), strict=True)
    off = max(itertools.starmap(_off, pairs))
    written = expand(fitted(schedule, sizes).schedule)
    clear_gradients(ours)
    measured = peak_bytes(lambda: training_step(applied, *call))
    exact = simulate(link(costed(written.graph, MEASURED), written.recomputes)).peak
    predicted = simulate(link(written.graph, written.recomputes)).peak
    return AtSize(sizes, off, measured, predicted, exact, says_within(allowed, sizes), len(written.recomputes))


def says_within(allowed: BudgetedRange, sizes: Mapping[str, int]) -> bool:
    """Whether a reader of `remate check` takes a size to be within the budget: nothing of it is larger than in a line
    of the list."""
    if allowed.everywhere:
        return True
    return any(all(number <= corner.dims[name] for name, number in sizes.items()) for corner in allowed.largest)


def _two_steps(owner: nn.Module, model: nn.Module, call: Call) -> list[torch.Tensor | None]:
    """Return losses, gradients and buffers after the steps. `owner` is the owner of the parameters."""
    clear_gradients(owner)
    torch.manual_seed(0)
    losses: list[torch.Tensor | None] = []
    for _ in range(2):
        first = next(iter(tensors_of(model(*call[0], **call[1]))))
        loss = first if first.dim() == 0 else first.pow(2).mean()
        loss.backward()
        losses.append(loss.detach())
    grads = (None if parameter.grad is None else parameter.grad for parameter in owner.parameters())
    return [*losses, *grads, *(buffer.clone() for buffer in owner.buffers())]


def _off(wanted: torch.Tensor | None, actual: torch.Tensor | None) -> float:
    if wanted is None or actual is None:
        return 0.0 if wanted is actual else math.inf
    if torch.equal(wanted, actual):
        return 0.0
    wanted, actual = wanted.double(), actual.double()
    return float((wanted - actual).abs().max() / wanted.abs().max().clamp_min(1e-30))


def row(name: str, outcome: Outcome) -> tuple[str, ...]:
    every, dims, budget = outcome.sizes, outcome.schedule.model.dims, outcome.schedule.solve.budget
    said = [result for result in every if result.within]
    bitwise = sum(result.off == 0 for result in every)
    most = max(result.off for result in every)
    over = max(result.predicted / result.measured - 1 for result in every)
    planned = next(result for result in every if all(dims[name].planned == n for name, n in result.sizes.items()))
    return (
        name,
        " ".join(
            f"{key}={dim.min}..{dim.max}{f'/{dim.multiple}' if dim.multiple > 1 else ''}" for key, dim in dims.items()
        ),
        spelled(planned.sizes),
        str(len(every)),
        f"{bitwise}" + (f", else {most:.0e}" if most else ""),
        str(sum(result.measured == result.predicted for result in every)),
        f"{over:.2%}" if over else "",
        str(len(said)),
        str(sum(result.measured <= budget for result in said)),
        f"{planned.recomputes}; fewer at {sum(result.recomputes < planned.recomputes for result in every)}",
        f"{outcome.longer - 1:.1%}",
    )


HEAD = ("", "range", "planned at", "sizes", "bitwise", "as "
"predicted", "at most over", "check says within", "within", "recomputes", "file longer by")  # fmt: skip


def _rows_and_notes(chosen: Sequence[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            start = time.process_time()
            result_of_model = outcome(CASES[name], CASES[name].budget, profile=Path(folder, f"{name}.json"))
            print(f"{name}: {time.process_time() - start:.0f} CPU s", flush=True)
            for at_size in result_of_model.sizes:
                if (
                    at_size.off
                    or at_size.measured > at_size.predicted
                    or (at_size.within and at_size.measured > result_of_model.schedule.solve.budget)
                ):
                    print(f"  {at_size}", flush=True)
            yield row(name, result_of_model), tuple(f"{name}: {text}" for text in result_of_model.bounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write the table to this file")
    parser.add_argument("--models", nargs="+", choices=sorted(CASES), default=list(CASES))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, notes = zip(*_rows_and_notes(chosen.models), strict=True)
    note_lines = "\n".join(itertools.chain.from_iterable(notes))
    text = f"python -m tools.bench.sizes; {environment()}\n\n{table([HEAD, *rows])}\n\n{note_lines}\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
