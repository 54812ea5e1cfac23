"""A gradient that the step sums and autograd adds to: a warning, because eager PyTorch adds in another order."""

from __future__ import annotations

import copy
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


CASTS = "two calls of a scheduled model are within one torch.autocast block"


def gradients(model: nn.Module, twice: Any) -> list[torch.Tensor]:
    model.zero_grad()
    twice(model, data(4, 8), data(4, 8) * 0.7).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def one_block(model: nn.Module, first: torch.Tensor, second: torch.Tensor, cache: bool = True) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
        return model(first).float().square() + model(second).float().square()


def one_block_without_cache(model: nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return one_block(model, first, second, cache=False)


def two_blocks(model: nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        one = model(first).float().square()
    with torch.autocast("cpu", torch.bfloat16):
        return one + model(second).float().square()


def cast() -> tuple[nn.Module, Any]:
    model = seeded(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1), nn.Flatten(0))).train()
    with torch.autocast("cpu", torch.bfloat16):
        schedule = remate.plan(model, (data(4, 8),), budget="100%", cost="cpu", progress=None)
    return seeded(copy.deepcopy(model)), remate_runtime.apply(model, schedule)


def test_two_calls_in_one_autocast_block_warn() -> None:
    _, planned = cast()
    with pytest.warns(UserWarning, match=CASTS):
        gradients(planned, lambda *given: one_block(*given).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not again
        gradients(copy.deepcopy(planned), lambda *given: two_blocks(*given).sum())
        gradients(planned, lambda *given: one_block(*given).sum())


def test_a_scheduled_call_and_another_in_one_autocast_block_warn() -> None:
    """The other one has a size that is not planned. Two such calls are eager PyTorch's own."""
    model, planned = cast()
    planned = remate_runtime.apply(model, planned._remate_step.steps[0].schedule, otherwise="original")
    for sizes in ((2, 4), (4, 2)):
        other = copy.deepcopy(planned)
        with pytest.warns(UserWarning, match=CASTS), torch.autocast("cpu", torch.bfloat16):
            _ = other(data(sizes[0], 8)), other(data(sizes[1], 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", remate_runtime.SteppedAsideWarning)
        with torch.autocast("cpu", torch.bfloat16):
            _ = planned(data(2, 8)), planned(data(2, 8))


@pytest.mark.parametrize("twice", [two_blocks, one_block_without_cache])
def test_other_calls_under_autocast_are_bitwise_equal(twice: Any) -> None:
    model, planned = cast()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            mine, eager = (gradients(each, lambda *given: twice(*given).sum()) for each in (planned, model))
            assert all(map(torch.equal, mine, eager))
