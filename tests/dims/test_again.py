"""replan and rebind keep a schedule's range of sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.api.rebind import rebind
from remate.api.replan import prepare_again, replan
from remate.dims.again import requested_again
from remate_runtime.format import checked_text


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU())

    def forward(self, batch: dict[str, torch.Tensor], rest: Any, scale: float = 1.0) -> torch.Tensor:
        return (self.layers(batch["x"]) * rest[0].unsqueeze(-1)).pow(2).mean() * scale


DIMS = {"batch": {"x": {0: "b=2..8", 1: "t=4..32/4"}}, "rest": ({0: "b", 1: "t"},)}


def example() -> tuple[Any, ...]:
    return {"x": torch.randn(4, 16, 8)}, (torch.rand(4, 16),)


def test_the_same_is_requested_again() -> None:
    schedule = remate.plan(Nested(), example(), budget="80%", cost="cpu", dims=DIMS)
    spec = requested_again(schedule, ["batch", "rest"])
    both = {0: "b=2..8", 1: "t=4..32/4"}
    assert spec == {"batch": {"x": both}, "rest": [both]}
    plain = remate.plan(Nested(), example(), budget="80%", cost="cpu")
    assert requested_again(plain, ["batch", "rest"]) is None


@pytest.mark.slow
def test_replan_and_rebind_keep_the_ranges() -> None:
    schedule = remate.plan(Nested(), example(), budget="80%", cost="cpu", dims=DIMS, name="s")
    step = prepare_again(schedule, Nested(), example())
    again, _ = replan(schedule, step)
    assert checked_text(again) == checked_text(schedule)
    carried = rebind(schedule, step)
    assert carried.schedule.model.dims == schedule.model.dims
    assert carried.schedule.blocks == schedule.blocks
    assert carried.schedule.solve.peak == schedule.solve.peak
