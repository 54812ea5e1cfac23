"""Models whose forward goes through all their modules or parameters: what is added to the model changes the step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate_runtime import BindError, StaleModelError


class Walking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())


class Penalty(Walking):
    """An L2 penalty over all parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        penalty = torch.stack([parameter.square().sum() for parameter in self.parameters()]).sum()
        return self.body(x).mean() + 0.1 * penalty


class Depth(Walking):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).mean() * len(list(self.named_modules()))


class InPart(Walking):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).mean() * sum(1 for _ in self.body.modules())


class First(Walking):
    """Asks for the first parameter alone, as many do for their device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.to(next(self.parameters()).device)).mean()


def _add_parameter(model: Walking) -> None:
    model.register_parameter("more", nn.Parameter(torch.ones(3)))


def _add_module(model: Walking) -> None:
    model.more = nn.Identity()


def _add_within(model: Walking) -> None:
    model.body.append(nn.Identity())


CHANGES = [(Penalty, _add_parameter), (Depth, _add_module), (InPart, _add_within)]


@pytest.mark.quick("True-InPart")
@pytest.mark.parametrize(("kind", "change"), CHANGES)
@pytest.mark.parametrize("late", [False, True])
def test_an_addition_is_noticed(kind: type[Walking], change: Callable[[Walking], None], late: bool) -> None:
    model, x = kind(), torch.randn(4, 8)
    schedule = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
    if not late:
        change(model)
        with pytest.raises((StaleModelError, BindError), match=r"more|container"):
            remate_runtime.apply(model, schedule)(x)
        return
    scheduled = remate_runtime.apply(model, schedule)
    scheduled(x).backward()
    change(model)
    with pytest.raises(StaleModelError, match=r"more|container"):
        scheduled(x)


@pytest.mark.parametrize("change", [_add_module])
def test_who_asks_for_the_first_parameter_may_grow(change: Callable[[Walking], None]) -> None:
    model, x = First(), torch.randn(4, 8)
    scheduled = remate_runtime.apply(model, remate.plan(model, (x,), budget="100%", cost="cpu", progress=None))
    scheduled(x).backward()
    change(model)
    scheduled(x).backward()
