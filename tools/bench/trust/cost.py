"""What trust costs: `apply`, the check of every call, and a step beside them; what becomes of files from strangers."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from remate import plan
from remate_runtime import Schedule, ScheduleError, apply
from remate_runtime.flat_step import expand
from remate_runtime.operator_calls import operators
from remate_runtime.staleness import Code, Guard, compare_digest
from tests.runtime.hostile_files import files as hostile_files
from tests.runtime.stepping import schedule_of
from tests.runtime.strangers import inputs as small_inputs
from tests.runtime.strangers import model as small_model

from ..self_check import MODELS
from ..text import table
from .gpt2 import gpt2


def stranger(schedule: Schedule) -> str:
    """What becomes of a file whose operators would crash the process, or write out of bounds."""
    try:
        apply(small_model(), schedule)(small_inputs()).sum().backward()
    except ScheduleError as error:
        return f"refused ({error.code})"
    except (RuntimeError, IndexError):
        return "stopped by torch"
    return "harmless"


def strangers() -> str:
    return table([("operators of a stranger's file", ""), *((name, stranger(file)) for name, file in hostile_files())])


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


class Dropouts(nn.Module):
    """As many rates of dropout as it is reported, all different attributes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Dropout(0.1) for _ in range(layers))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for drop in self.h:
            x = drop(x)
        return self.out(x).mean()


def live_attributes(count: int) -> str:
    """What reading so many attributes at every call adds to a step's CPU time: of two models, in turn."""
    x, seconds = torch.randn(2, 8), []
    for live in ([], ["h.*.p"]):
        model = Dropouts(count)
        seconds.append(apply(model, plan(model, (x,), budget="100%", cost="cpu", strategy="greedy", live=live)))
    times: list[list[float]] = [[], []]
    for _ in range(300):
        for planned, taken in zip(seconds, times, strict=True):
            start = time.thread_time()
            planned(x).backward()
            taken.append(time.thread_time() - start)
    fixed, varying = map(median, times)
    return f"{(varying - fixed) * 1e6:.0f} us, of {varying * 1e6:.0f} us for the step"


def cost(layers: int, steps: int) -> str:
    model, inputs = gpt2(layers, 768)
    schedule = plan(model, (), inputs, budget="100%", cost="cpu", strategy="greedy")
    assert schedule.digest is not None
    code = Code()
    compare_digest(schedule.digest, torch.__version__, model, code)
    guard, planned = Guard(model, schedule.digest, code), apply(model, schedule)
    digest, expanded = schedule.digest, expand(schedule)
    modules = sum(1 for _ in model.modules())
    rows = [
        ("modules", str(modules)),
        ("comparison at apply", f"{timed(lambda: compare_digest(digest, '', model, Code()), 5) * 1e3:.2f} ms"),
        ("operators and types at apply", f"{timed(lambda: operators(expanded.graph, expanded.where), 5) * 1e3:.0f} ms"),
        ("check at every call", f"{timed(guard.check, 200) * 1e6:.0f} us"),
        ("a step, 64 tokens of width 768", f"{timed(lambda: planned(**inputs).loss.backward(), steps) * 1e3:.1f} ms"),
        ("24 live attributes, a call", live_attributes(24)),
        ("deepcopy, applied again", f"{timed(lambda: copy.deepcopy(planned), 2) * 1e3:.0f} ms"),
    ]
    return table([("cost", ""), *rows])


def guards() -> str:
    """The check of every call, and the comparison at `apply`, for small models of several kinds."""
    rows = [("model", "modules", "check at every call", "comparison at apply")]
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model, kwargs = build()
        digest = schedule_of(model, (), kwargs).digest
        assert digest is not None
        code = Code(digest.fields)
        compare_digest(digest, "", model, code)
        guard = Guard(model, digest, code)
        compared = timed(functools.partial(compare_digest, digest, "", model), 5)
        count = sum(1 for _ in model.modules())
        rows.append((name, str(count), f"{timed(guard.check, 300) * 1e6:.0f} us", f"{compared * 1e3:.1f} ms"))
    return table(rows)
