"""Numbers that forward returns beside its tensors follow from the sizes of the call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remate
from remate_runtime import apply
from remate_runtime.format import Schedule

NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "size": lambda x: x.shape[0],
    "product": lambda x: 2 * x.shape[0],
    "quotient": lambda x: x.shape[0] // 2,
    "shape": lambda x: tuple(x.shape),
    "nested": lambda x: [x.numel(), {"rows": len(x), "name": "x"}],
    "condition": lambda x: x.shape[0] > 1,
}


class Reporting(nn.Module):
    def __init__(self, number: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.number = nn.Linear(4, 4), number

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"loss": self.linear(x).tanh().sum(), "number": self.number(x)}


@pytest.mark.parametrize("kind", NUMBERS)
def test_each_size_returns_its_own(kind: str) -> None:
    """They were null in the file, so the first call was refused."""
    eager = Reporting(NUMBERS[kind])
    dims = {"x": {0: "n=2..32"}}
    schedule = remate.plan(eager, (torch.randn(32, 4),), budget="100%", cost="cpu", effort="quick", dims=dims)
    assert isinstance(schedule, Schedule)
    model = apply(copy.deepcopy(eager), schedule)
    for size in (32, 20, 7):
        x = torch.randn(size, 4)
        mine, theirs = model(x), eager(x)
        assert mine["number"] == theirs["number"]
        assert type(mine["number"]) is type(theirs["number"])
        assert torch.equal(mine["loss"], theirs["loss"])
