"""Backward passes that a schedule does not have run the model's own forward again, where that is allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn

import remate
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


def frozen(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    y.sum().backward(retain_graph=True)
    model[0].weight.requires_grad_(False)
    y.sum().backward()
    return []


def exchanged(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    model[0].weight.data = model[0].weight.data * 2
    return list(torch.autograd.grad(y.sum(), x, create_graph=True))


def in_double(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    torch.set_default_dtype(torch.float64)
    try:
        return list(torch.autograd.grad(y.sum(), x, create_graph=True))
    finally:
        torch.set_default_dtype(torch.float32)


REFUSED = {
    changed_input: "inputs or parameters changed",
    changed_bias: "inputs or parameters changed",
    in_eval: "another mode",
    hooked: "hooks on its gradient",
    without_a_variable: "inputs are gone",
    frozen: "frozen after forward",
    exchanged: "exchanged after forward",
    in_double: "default dtype",
}


@pytest.mark.parametrize("step", REFUSED)
def test_what_forward_cannot_repeat_is_refused(planned: Any, step: Callable[..., Any]) -> None:
    with pytest.raises(ExecutionError, match=REFUSED[step]):
        results(copy.deepcopy(planned), step)


class Averaging(nn.Module):
    """Updates statistics and an average of its results, and sets attributes. adds: also adds the average."""

    def __init__(self, adds: bool = False) -> None:
        super().__init__()
        self.adds = adds
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 4))
        self.register_buffer("average", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        average = self.get_buffer("average")
        average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        self.rows, self.largest = x.shape[0], y.detach().amax()
        return y + average if self.adds else y


@pytest.mark.parametrize("step", [penalty, second_loss])
def test_buffers_that_forward_only_updates_are_updated_once(step: Callable[..., Any]) -> None:
    model, eager = seeded(Averaging()).train(), seeded(Averaging()).train()
    planned = apply(model, schedule_of(model, (data(4, 8).requires_grad_(),)), otherwise="original")
    with pytest.warns(SteppedAsideWarning, match="own forward ran again in backward"):
        actual = results(planned, step)
    for ours, wanted in zip(actual, results(eager, step), strict=True):
        torch.testing.assert_close(ours, wanted)
    assert all(map(torch.equal, model.buffers(), eager.buffers()))
    assert model.get_buffer("layers.1.num_batches_tracked") == (2 if step is penalty else 1)
    assert torch.equal(model.largest, eager.largest)


def test_buffers_that_forward_updates_and_reads_are_refused() -> None:
    model = seeded(Averaging(adds=True)).train()
    planned = apply(model, schedule_of(model, (data(4, 8).requires_grad_(),)), otherwise="original")
    with pytest.raises(ExecutionError, match="it computes with buffers that it updates"):
        results(planned, second_loss)


@pytest.mark.parametrize("step", [penalty, second_loss])
def test_forward_runs_again_under_its_autocast(step: Callable[..., Any]) -> None:
    def in_autocast(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(x).float()

        return forward

    model, eager = critic(0.0), critic(0.0)
    with torch.autocast("cpu", torch.bfloat16):
        schedule = schedule_of(model, (data(4, 8).requires_grad_(),))
    planned = apply(model, schedule, otherwise="original")
    x, same = data(4, 8).requires_grad_(), data(4, 8).requires_grad_()
    with pytest.warns(SteppedAsideWarning, match="own forward ran again in backward"):
        actual = step(in_autocast(planned), x)
    for ours, wanted in zip(actual, step(in_autocast(eager), same), strict=True):
        torch.testing.assert_close(ours, wanted)
    for ours, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, wanted.grad, rtol=0.02, atol=0.001)


def test_autocast_around_backward_is_not_forwards(planned: Any) -> None:
    def backward_in_autocast(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
        y = model(x)
        y.square().mean().backward(retain_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            y[:2].sum().backward()
        return []

    with pytest.warns(SteppedAsideWarning):
        actual = results(copy.deepcopy(planned), backward_in_autocast)
    assert all(map(torch.equal, actual, results(critic(), backward_in_autocast)))


def test_live_attributes_that_change_after_forward_are_refused() -> None:
    model = critic()
    schedule = remate.plan(model, (data(4, 8).requires_grad_(),), budget="100%", cost="cpu", live=["2.p"])
    planned = apply(model, schedule, otherwise="original")
    for p, refused in ((0.3, False), (0.1, True)):
        y = planned(data(4, 8).requires_grad_())
        y.sum().backward(retain_graph=True)
        planned[2].p = p
        expected = (
            pytest.raises(ExecutionError, match="live attributes or inputs changed") if refused else pytest.warns()
        )
        with expected:
            y.sum().backward()


def test_an_input_in_another_memory_layout_is_still_there() -> None:
    model = critic(0.0)
    planned = apply(model, schedule_of(model, (data(4, 8),)), otherwise="original")
    x = data(8, 4).t()
    for run in (planned, eager := critic(0.0)):
        y = run(x)
        y.square().mean().backward(retain_graph=True)
        y[:2].sum().backward()
    assert planned._remate_step.other_backward
    actual, expected = ([*map(attrgetter("grad"), each.parameters())] for each in (planned, eager))
    assert all(map(torch.equal, actual, expected))


def test_inputs_of_inference_mode_are_as_good_as_before() -> None:
    model = seeded(nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 1)))
    planned = apply(model, schedule_of(model, (torch.arange(5),)), otherwise="original")
    with torch.inference_mode():
        ids = torch.arange(5)
    y = planned(ids)
    y.sum().backward(retain_graph=True)
    with pytest.raises(ExecutionError, match="created in inference mode"):
        y.sum().backward()
