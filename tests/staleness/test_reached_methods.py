"""Methods and properties of submodules that forward reaches without calling the submodule: they belong to what was
planned."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from remate_runtime import Schedule, StaleModelError, apply
from remate_runtime.format import decode, encode
from tests.runtime.stepping import assert_same, schedule_of, step

from .sources import Sources, sources

__all__ = ["sources"]
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

TEXT = """
import functools

import torch
from torch import nn


def default(value, other):
    return other if value is None else value


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.ones(8)), 2.0

    @property
    def device(self):
        return self.weight.device

    @property
    def scale(self):
        return self.base * 0.5

    @property
    def base(self):
        return self.gain + self.offset()

    @functools.cached_property
    def shift(self):
        return self.gain * 0.25

    @staticmethod
    def offset():
        return 1.0

    def positions(self, n, device=None):
        return torch.arange(n, device=default(device, self.device))

    def rotate(self, x):
        return x * self.positions(x.shape[-1]) * self.weight * self.scale + self.shift


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = Table(), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.table.rotate(x) * self.table.scale).pow(2).mean()


def build():
    torch.manual_seed(0)
    return Net()
"""


@pytest.fixture(scope="module", params=["first call", "called before"])
def schedule(sources: Sources, request: pytest.FixtureRequest) -> Schedule:
    model = sources.build(text=TEXT)
    if request.param == "called before":
        model(X)
    return decode(encode(schedule_of(model, (X,))))


@pytest.mark.quick("first call-deepcopy")
@pytest.mark.parametrize("life", [lambda model: model, copy.deepcopy, lambda model: (model(X), model)[1]])
def test_the_planned_model_is_accepted(sources: Sources, schedule: Schedule, life: Callable[[Any], Any]) -> None:
    model = life(sources.build(text=TEXT))
    planned = apply(model, schedule)
    for _ in range(2):
        assert_same(step(planned, (X,)), step(sources.build(text=TEXT), (X,)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.weight.device", "return self.weight.data.device"),
        ("return self.base * 0.5", "return self.base * 0.75"),
        ("return self.gain + self.offset()", "return self.gain - self.offset()"),
        ("return self.gain * 0.25", "return self.gain * 0.125"),
        ("return 1.0", "return 1.5"),
        ("torch.arange(n,", "torch.arange(n, dtype=torch.float32,"),
        ("* self.weight * self.scale", "* self.scale"),
        ("other if value is None", "value if value is None"),
        ("nn.Parameter(torch.ones(8)), 2.0", "nn.Parameter(torch.ones(8)), 3.0"),
    ],
)
def test_what_is_reached_is_compared(sources: Sources, schedule: Schedule, old: str, new: str) -> None:
    with pytest.raises(StaleModelError):
        apply(sources.build(old, new, text=TEXT), schedule)
