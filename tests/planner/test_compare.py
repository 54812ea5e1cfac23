"""Comparing two models: every kind of difference is seen, and the state that they start from is the same."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from remate.step_measurement.allocator import peak_bytes
from remate_runtime.staleness import (
    NothingToTrainError,
    compare_models,
    default_loss,
    generator_states,
    tensors_of,
    training_step,
)
from tests.models import ZOO


@pytest.mark.quick("two_tower")
@pytest.mark.parametrize("name", ["gpt2", "resnet", "mlp_mixer", "two_tower"])
def test_a_model_equals_its_copy_over_steps(name: str):
    model, args, kwargs = ZOO[name].build()
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    state = torch.get_rng_state()
    difference = compare_models(model, copy.deepcopy(model), args, kwargs, steps=3)
    assert difference.bitwise, difference
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())


def test_a_model_equals_itself_though_it_shares_buffers():
    model, args, kwargs = ZOO["resnet"].build()
    assert compare_models(model, model, args, kwargs, steps=2).bitwise


def test_a_changed_weight_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter("1.weight").mul_(2)
    difference = compare_models(model, other, (torch.ones(2, 4),))
    assert difference.relative > 0.1
    assert difference.where
    assert difference.outputs > 0


class Shifted(nn.Module):
    """The gradient of the bias in front of the norm is zero but for rounding."""

    def __init__(self, wrong: float = 0.0) -> None:
        super().__init__()
        self.linear, self.norm, self.wrong = nn.Linear(16, 8), nn.BatchNorm1d(8), wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return (self.norm(y + self.wrong * y.tanh()) * torch.linspace(1, 2, 8)).square().square().sum()


def test_gradients_that_are_zero_but_for_rounding_are_compared_with_the_largest():
    torch.manual_seed(0)
    x, model = torch.randn(64, 16), Shifted()
    turned = copy.deepcopy(model)
    turned.forward = lambda x: Shifted.forward(turned, x.flip(0))  # sums in another order
    difference = compare_models(model, turned, (x,))
    assert not difference.bitwise
    assert difference.relative < 1e-3
    assert not difference.beyond
    wrong = Shifted(1e-2)
    wrong.load_state_dict(model.state_dict())
    different = compare_models(model, wrong, (x,))
    assert different.relative > 1e-3
    assert different.beyond


class Stale(nn.Module):
    """Draws as many numbers as dropout, but leaves the generator somewhere else, or updates a buffer twice."""

    def __init__(self, extra_draw: bool, extra_count: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))
        self.extra_draw, self.extra_count = extra_draw, extra_count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(2 if self.extra_count else 1)
        y = nn.functional.dropout(x * self.weight, 0.5)
        if self.extra_draw:
            torch.rand(1)
        return y.sum()


def test_generator_and_buffers_are_compared():
    args = (torch.ones(8),)
    assert not compare_models(Stale(False, False), Stale(True, False), args).generator_equal
    assert not compare_models(Stale(False, False), Stale(False, True), args).buffers_equal
    assert compare_models(Stale(False, False), Stale(False, False), args, steps=3).bitwise


def test_a_missing_gradient_is_infinitely_far():
    model = nn.Linear(2, 1)
    frozen = copy.deepcopy(model)
    frozen.bias.requires_grad_(False)
    difference = compare_models(model, frozen, (torch.ones(1, 2),))
    assert difference.absolute == float("inf")
    assert difference.where == "bias"


def test_gradients_of_inputs_are_compared():
    x = torch.ones(1, 2, requires_grad=True)
    difference = compare_models(nn.Linear(2, 1), nn.Linear(2, 1), (x,))
    assert difference.relative > 0


def test_loss_is_the_first_scalar_or_the_sum_of_mean_squares():
    x = torch.arange(4.0, requires_grad=True)
    assert default_loss((x, x.sum(), x.prod())).item() == 6
    assert default_loss({"a": x, "b": [2 * x]}).item() == pytest.approx(14 / 4 * 5)
    with pytest.raises(NothingToTrainError, match="training mode"):
        default_loss(x.detach())
    default_loss(x).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach() / 4)


def test_default_loss_adds_one_tensor_each_way():
    x = torch.ones(4096, requires_grad=True)
    assert peak_bytes(lambda: default_loss([2 * x]).backward()) < 3 * 4 * 4096 + 100


def test_tensors_are_found_in_dataclasses():
    @dataclasses.dataclass
    class Output:
        loss: torch.Tensor
        rest: tuple[object, ...]

    a, b = torch.ones(1), torch.ones(2)
    assert [t.shape[0] for t in tensors_of(Output(a, ({"k": b}, 3, None)))] == [1, 2]


def test_step_replaces_gradients():
    layer = nn.Linear(2, 1)
    x = torch.ones(1, 2)
    training_step(layer, (x,))
    (once,) = [layer.weight.grad]
    training_step(layer, (x,))
    assert once is not None
    assert torch.equal(once, layer.weight.grad)  # type: ignore[arg-type]
    assert len(generator_states()) >= 1
