"""Calls that eager allows and schedules do not: refused with the module, the line, and advice that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.errors import CaptureError

X = torch.randn(4, 8)
TORCH: Any = torch


class Calls(nn.Module):
    def __init__(self, forward: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(8, 8), forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.made(self.linear, x)


def _retained(linear: Any, x: torch.Tensor) -> torch.Tensor:
    h = linear(x)
    h.retain_grad()
    return h.square().mean()


def _asserted(linear: Any, x: torch.Tensor) -> torch.Tensor:
    TORCH._assert_async((x < 100).all())
    return linear(x).mean()


@pytest.mark.quick("_retained")
@pytest.mark.parametrize(("forward", "told"), [(_retained, "retain_grad"), (_asserted, "_assert_async")])
def test_it_is_refused_with_its_line(forward: Any, told: str) -> None:
    with pytest.raises(CaptureError, match=rf"{told}[^~]*test_refused_calls\.py:\d+"):
        remate.plan(Calls(forward), (X,), budget="100%", cost="cpu", cache=False)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.second = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.between: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.between = self.first(x)
        self.between.retain_grad()
        return self.second(self.between).mean()


def test_the_advice_for_retain_grad_works() -> None:
    import remate_runtime

    model = Around()
    schedule = remate.plan(model, (X,), at=["first", "second"], budget="100%", cost="cpu", cache=False)
    remate_runtime.apply(model, schedule)(X).backward()
    assert model.between.grad is not None
