"""What `plan` says of a batch of one, where the range begins at 2 because the caller gave none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime

from .models import Attention
from .test_plan_dims import features, tokens, trained


class Layers(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).pow(2).mean()


def said_of_one(model: nn.Module, args: Any, dims: Any) -> tuple[remate_runtime.Schedule, str]:
    said: list[str] = []
    schedule = remate.plan(model, args, budget="80%", cost="cpu", dims=dims, progress=said.append)
    assert isinstance(schedule, remate_runtime.Schedule)
    (text,) = [line for line in said if "is not for" in line] or [""]
    return schedule, text


@pytest.mark.quick("dims2")
@pytest.mark.parametrize("dims", ["auto", {"x": {0: "b"}}, {"x": {0: "b", 1: "t=4..16"}}, {"x": {0: "b", 1: "t"}}])
def test_the_call_that_it_prints_plans_the_other_schedule(dims: Any) -> None:
    model = Layers()
    schedule, text = said_of_one(model, features(4, 8), dims)
    assert text.startswith("the schedule is not for b=1, which")
    one = eval(text.partition("one = ")[2], {"remate": remate, "torch": torch, "model": model})
    applied = remate_runtime.apply(model, [schedule, one])
    original = remate_runtime.apply(model, schedule, otherwise="original")
    for b in (1, 4, 1):
        wanted = trained(copy.deepcopy(model), features(b, 8))
        for each in (applied, original):
            actual = trained(each, features(b, 8))
            assert all(torch.equal(left, right) for left, right in zip(wanted, actual, strict=True)), b


@pytest.mark.quick("None")
@pytest.mark.parametrize("dims", [None, {"x": {0: "b=2..4"}}, {"x": {0: "b=1..4"}}, {"x": {1: "t"}}])
def test_nothing_is_said_of_a_requested_range_or_without_a_batch(dims: Any) -> None:
    assert said_of_one(Layers(), features(4, 8), dims)[1] == ""


@pytest.mark.slow
def test_a_length_is_no_batch() -> None:
    assert "t=1" not in said_of_one(Attention(), tokens(4, 16), {"tokens": {0: "b", 1: "t"}})[1]
