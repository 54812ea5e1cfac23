"""Buffers that a step updates: what shares their memory is another number in eager once they are written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate import plan
from remate.errors import CaptureError
from remate_runtime import BindError, Schedule, apply


class Averages(nn.Module):
    """Reads a buffer and an input after it has updated others."""

    mean: torch.Tensor
    other: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("other", torch.ones(4))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.layer(x))
        self.mean.mul_(0.5).add_(hidden.detach().mean(0) + 1)
        return (hidden * self.other * scale).square()


X, SCALE = torch.randn(6, 4), torch.rand(6, 4)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan(Averages(), (X, SCALE), budget="100%", cost="cpu", dims="none")


INPUTS: dict[str, Callable[[Averages], torch.Tensor]] = {
    "view": lambda model: model.mean.expand(6, 4),
    "detached": lambda model: model.mean.detach()[None].expand(6, 4),
    "of a layer's": lambda model: model.get_buffer("norm.running_mean").expand(6, 4),
    "by NumPy": lambda model: torch.from_numpy(model.mean.numpy())[None].expand(6, 4),
}


@pytest.mark.slow("view")
@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
def test_an_input_that_lies_in_one_is_refused(schedule: Schedule, given: Callable[[Averages], torch.Tensor]) -> None:
    model = Averages()
    planned = apply(model, schedule)
    with pytest.raises(
        BindError, match=r"input 'scale' shares memory with the buffer '.*mean', which the step updates"
    ):
        planned(X, given(model))
    with torch.no_grad(), pytest.raises(BindError, match="input 'scale'"):
        planned(X, given(model))
    planned(X, given(model).clone())
    planned(X, model.other.expand(6, 4))  # a buffer that stays as it is


def test_inputs_beside_one_in_the_same_storage_are_taken(schedule: Schedule) -> None:
    """As of buffers that somebody has laid in one stretch of memory."""
    model = Averages()
    planned, together = apply(model, schedule), torch.zeros(28)
    model.mean = together[24:]
    planned(X, together[:24].view(6, 4))
    with pytest.raises(BindError, match="input 'scale'"):
        planned(X, together[3:27].view(6, 4))


SHARED: dict[str, tuple[str, Callable[[Averages], None]]] = {
    "another buffer": ("buffer 'other'", lambda model: setattr(model, "other", model.mean)),
    "a view": ("buffer 'other'", lambda model: setattr(model, "other", model.mean.view(4))),
    "two that are updated": ("buffer", lambda model: setattr(model.norm, "running_mean", model.mean)),
    "a parameter": ("parameter 'layer.bias'", lambda model: setattr(model.layer, "bias", nn.Parameter(model.mean))),
}


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize(("told", "share"), SHARED.values(), ids=SHARED)
def test_another_tensor_of_the_model_in_one_is_refused(
    schedule: Schedule, told: str, share: Callable[[Averages], None], after: bool
) -> None:
    """After the schedule is applied, and before."""
    model = Averages()

    def act() -> None:
        if after:
            planned = apply(model, schedule)
            planned(X, SCALE)
        share(model)
        planned(X, SCALE) if after else apply(model, schedule)

    with pytest.raises(BindError, match=rf"the {told}.* shares memory with the buffer '.*mean'"):
        act()


class Tied(nn.Module):
    """One buffer by two names."""

    first: torch.Tensor
    second: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("first", torch.ones(4))
        self.register_buffer("second", self.first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.mul_(0.5)
        return (self.layer(x) * self.second).square()


def test_names_of_one_buffer_stay_names_of_one() -> None:
    model = Tied()
    schedule = plan(model, (X,), budget="100%", cost="cpu", dims="none")
    assert schedule.model.tied == {"second": "first"}
    planned, twin = apply(Tied(), schedule), Tied()
    twin.load_state_dict(planned.state_dict())
    for _ in range(2):
        assert torch.equal(planned(X), twin(X))
    untied = Tied()
    untied.second = untied.first.clone()
    with pytest.raises(BindError, match="buffer 'second': the same tensor as 'first' when planned, now another tensor"):
        apply(untied, schedule)
    model = Tied()
    planned = apply(model, schedule)
    planned(X)
    model.second = model.first.clone()
    with pytest.raises(BindError, match="buffer 'second': the same tensor as 'first'"):
        planned(X)


class Sharing(nn.Module):
    """Writes into a buffer that shares its memory with another tensor of the model."""

    full: torch.Tensor
    beside: torch.Tensor

    def __init__(self, other: Callable[[nn.Linear], tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        full, beside = other(self.layer)
        self.register_buffer("full", full)
        self.register_buffer("beside", beside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.full.mul_(0.5)
        return (self.layer(x) * self.beside.view(-1)).square()


def _view(layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    full = torch.ones(4)
    return full, full.view(2, 2)


@pytest.mark.quick("parameter")
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (_view, "memory that 'beside' shares"),
        (lambda layer: (layer.bias.data, torch.ones(4)), "memory that 'layer.bias' and 'full' share"),
    ],
    ids=["view", "parameter"],
)
def test_such_a_model_is_not_planned(other: Any, told: str) -> None:
    with pytest.raises(CaptureError, match=rf"forward writes into {told}(.|\n)*derive the other in forward"):
        plan(Sharing(other), (X,), budget="100%", cost="cpu", dims="none")


def test_the_own_forward_and_a_schedule_of_a_batch_norm_before_one_backward(schedule: Schedule) -> None:
    torch.manual_seed(0)
    model, twin = Averages(), Averages()
    twin.load_state_dict(model.state_dict())
    planned = apply(model, schedule)
    (model(X, SCALE) + planned(X, SCALE) + model(X, SCALE)).sum().backward()
    (twin(X, SCALE) + twin(X, SCALE) + twin(X, SCALE)).sum().backward()
    for (name, mine), eager in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert eager.grad is not None
        assert torch.allclose(mine.grad, eager.grad), name  # a step adds its sums first
    assert all(map(torch.equal, model.buffers(), twin.buffers()))
