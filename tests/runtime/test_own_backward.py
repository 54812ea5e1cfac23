"""Backward passes that a schedule does not have run the model's own forward again, where that is allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import ExecutionError, SteppedAsideWarning, apply

from .small import data, seeded
from .stepping import schedule_of


def critic(dropout: float = 0.3) -> nn.Module:
    layers = (nn.Linear(8, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    return seeded(nn.Sequential(*layers)).train()


def penalty(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = (slope.norm(2, 1) - 1).square().mean() + model(x.detach() * 0.5).mean()
    loss.backward()
    return [slope.detach()]


def second_loss(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    y.square().mean().backward(retain_graph=True)
    y[:2].sum().backward()
    return [x.grad] if x.grad is not None else []


def results(model: Any, step: Callable[[Any, torch.Tensor], list[torch.Tensor]]) -> list[Any]:
    torch.manual_seed(1)
    model.zero_grad()
    x = data(4, 8).requires_grad_()
    return [*step(model, x), *(p.grad for p in model.parameters()), torch.rand(2)]


@pytest.fixture(scope="module")
def planned() -> Any:
    model = critic()
    return apply(model, schedule_of(model, (data(4, 8).requires_grad_(),)), otherwise="original")


@pytest.mark.parametrize("step", [penalty, second_loss])
def test_another_backward_is_eagers(planned: Any, step: Callable[..., Any]) -> None:
    mine = copy.deepcopy(planned)
    with pytest.warns(SteppedAsideWarning, match="own forward ran again in backward"):
        actual = results(mine, step)
    assert all(map(torch.equal, actual, results(critic(), step)))
    assert mine._remate_step.other_backward
    with pytest.raises(ExecutionError, match=r"otherwise='original'"):
        results(apply(critic(), planned._remate_step.steps[0].schedule), step)


def changed_input(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    with torch.no_grad():
        x.mul_(2)
    return list(torch.autograd.grad(y.sum(), x, create_graph=True))


def changed_bias(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    with torch.no_grad():
        model[0].bias.add_(1)
    return list(torch.autograd.grad(y.sum(), x, create_graph=True))


def in_eval(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    model.eval()
    return list(torch.autograd.grad(y.sum(), x, create_graph=True))


def hooked(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    x.register_hook(lambda gradient: gradient * 2)
    return list(torch.autograd.grad(model(x).sum(), x, create_graph=True))


def without_a_variable(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x.clone())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return []


REFUSED = {
    changed_input: "inputs or parameters changed",
    changed_bias: "inputs or parameters changed",
    in_eval: "another mode",
    hooked: "hooks on its gradient",
    without_a_variable: "inputs are gone",
}


@pytest.mark.parametrize("step", REFUSED)
def test_what_forward_cannot_repeat_is_refused(planned: Any, step: Callable[..., Any]) -> None:
    with pytest.raises(ExecutionError, match=REFUSED[step]):
        results(copy.deepcopy(planned), step)


def test_buffers_that_forward_updates_are_refused() -> None:
    model = seeded(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))).train()
    planned = apply(model, schedule_of(model, (data(4, 8).requires_grad_(),)), otherwise="original")
    with pytest.raises(ExecutionError, match="it updates buffers"):
        results(planned, second_loss)
