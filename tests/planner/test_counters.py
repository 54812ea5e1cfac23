"""What forward changes from call to call outside of buffers: refused where it computes with it, and left as it was."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate.errors import CaptureError

X = torch.randn(6, 8)
COUNT = 0
COUNTS = {"calls": 0}
TABLES: dict[int, torch.Tensor] = {}
NUMBERS = itertools.count()
LOG: collections.deque[Any] = collections.deque()


class Holder:
    calls = 0


HOLDER = Holder()


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls, self.holder = 0, Holder()
        self.cycle = itertools.cycle([1.0, 1.0, 1.0, 2.0])

    def loss(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return self.linear(x).square().mean() * scale


class InGlobal(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global COUNT
        COUNT += 1
        return self.loss(x, 2.0 if COUNT > 100 else 1.0)


class InDict(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNTS["calls"] += 1
        return self.loss(x, 2.0 if COUNTS["calls"] > 100 else 1.0)


class InGlobalObject(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        HOLDER.calls += 1
        return self.loss(x, 2.0 if HOLDER.calls > 100 else 1.0)


class InObject(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.holder.calls += 1
        return self.loss(x, 2.0 if self.holder.calls % 100 == 99 else 1.0)


class InAttribute(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.loss(x, 2.0 if self.calls >= 100 else 1.0)


class InIterator(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(x, 2.0 if next(NUMBERS) > 100 else 1.0)


class InCycle(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(x, next(self.cycle))


class InDefault(Linear):
    def forward(self, x: torch.Tensor, seen: Any = [0]) -> torch.Tensor:  # noqa: B006
        seen[0] += 1
        return self.loss(x, 2.0 if seen[0] > 100 else 1.0)


def planned(model: nn.Module) -> Any:
    return remate.plan(model, (X,), budget="100%", cost="cpu", cache=False)


@pytest.mark.parametrize(
    "kind", [InGlobal, InDict, InGlobalObject, InObject, InAttribute, InIterator, InCycle, InDefault]
)
@pytest.mark.filterwarnings("ignore:forward (reads and then changes|changes)")
def test_a_counter_that_forward_computes_with_is_refused(kind: Any) -> None:
    before = COUNT, dict(COUNTS), HOLDER.calls
    with pytest.raises(CaptureError, match="from call to call"):
        planned(kind())
    assert before == (COUNT, dict(COUNTS), HOLDER.calls)


class Counts(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global COUNT
        COUNT += 1
        COUNTS["calls"] += 1
        self.calls += 1
        return self.loss(x, 1.0)


def test_what_only_counts_is_planned_with_a_warning() -> None:
    before = COUNT, dict(COUNTS)
    model = Counts()
    with pytest.warns(UserWarning, match="computes nothing with it"):
        applied = remate_runtime.apply(model, planned(model))
    assert before == (COUNT, dict(COUNTS))
    assert model.calls == 0
    assert torch.equal(applied(X), model(X))


@functools.lru_cache(maxsize=4)
def positions(length: int) -> torch.Tensor:
    return torch.arange(float(length))[:, None]


def table(length: int) -> torch.Tensor:
    if length not in TABLES:
        TABLES[length] = torch.arange(float(length))[:, None]
    return TABLES[length]


class Remembers(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * positions(x.size(0))).square().mean()


class Tabulates(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * table(x.size(0))).square().mean()


@pytest.mark.parametrize("kind", [Remembers, Tabulates])
def test_results_that_functions_remember_are_made_for_real(kind: Any) -> None:
    model = kind()
    applied = remate_runtime.apply(model, planned(model))
    for _ in range(2):
        assert torch.equal(applied(X), model(X))
    assert type(positions(6)) is torch.Tensor
    assert all(type(tensor) is torch.Tensor for tensor in TABLES.values())


class Logs(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        LOG.append(h.detach())
        return h.square().mean()


def test_nothing_of_a_trace_stays_in_a_log() -> None:
    with pytest.warns(UserWarning, match="global 'LOG'"):
        planned(Logs())
    assert not LOG
