"""A gradient that the step sums and autograd adds to: a warning, because eager PyTorch adds in another order."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime

from .small import data, seeded

SUMMED = r"the gradient of parameter 'inner\.weight' is a sum"


class Tied(nn.Module):
    """Uses one weight twice, and another once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(nn.functional.linear(torch.relu(self.inner(x)), self.inner.weight.t()))).sum()


def tied() -> Any:
    model = seeded(Tied()).train()
    return remate_runtime.apply(model, remate.plan(model, (data(4, 8),), budget="100%", cost="cpu", progress=None))


def test_a_penalty_on_a_weight_that_is_used_twice() -> None:
    model = tied()
    with pytest.warns(UserWarning, match=SUMMED) as met:
        (model(data(4, 8)) + sum(p.square().sum() for p in model.parameters())).backward()
    assert len(met) == 1


def test_two_calls_in_one_backward() -> None:
    model = tied()
    with pytest.warns(UserWarning, match=SUMMED):
        (model(data(4, 8)) * model(data(4, 8))).backward()


def test_no_warning_where_nothing_is_added() -> None:
    model = tied()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # the second one is added to `.grad`, as eager PyTorch adds it
            model(data(4, 8)).backward()
        model.last.weight.square().sum().backward()
        torch.autograd.grad(model(data(4, 8)), model.inner.weight)
        model(data(4, 8)).backward()
