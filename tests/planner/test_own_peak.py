"""The peak of a model that checkpoints its own layers, which the plan replaces."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import remate
from remate.capture.own_peak import own_peak
from remate.step_measurement.allocator import peak_bytes

X = torch.randn(64, 32)


class Checkpointed(nn.Module):
    """Counts its calls, in a list and in an attribute."""

    def __init__(self, used: bool, reentrant: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32)) for _ in range(6))
        self.used, self.reentrant = used, reentrant
        self.calls, self.seen = 0, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(x.detach())
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if self.used else layer(x)
        return x.square().mean()


def test_a_checkpoint_lowers_the_peak() -> None:
    whole, own = (own_peak(Checkpointed(used), (X,), {}, [True]) for used in (False, True))
    assert whole is not None
    assert own is not None
    assert own < 0.7 * whole


def test_the_peak_is_the_allocators() -> None:
    """Within the rounding of the allocator: no kernel of this model needs a workspace."""
    model = Checkpointed(True)

    def step() -> None:
        model.seen.clear()
        model.zero_grad(set_to_none=True)
        model(X).backward()

    step()
    model.zero_grad(set_to_none=True)
    own = own_peak(model, (X,), {}, [True])
    assert own == pytest.approx(peak_bytes(step), rel=0.05)


@pytest.mark.quick("False")
@pytest.mark.parametrize("reentrant", [False, True])
def test_the_run_leaves_nothing_behind(reentrant: bool) -> None:
    """A checkpoint sets the state of the generator in backward."""
    model = Checkpointed(True, reentrant)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, x = torch.get_rng_state(), X.clone().requires_grad_()
    assert own_peak(model, (x,), {}, [True])
    assert (model.calls, model.seen) == (0, [])
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_parameters_in_lists_get_no_gradient() -> None:
    """A recurrent layer reads its parameters from a list of its own."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(32, 16, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda y: self.layer(y[None])[0], x, use_reentrant=False).square().mean()

    model = Recurrent()
    own_peak(model, (X,), {}, [True])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_forward_that_reads_values_has_no_peak() -> None:
    class Reading(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * float(input.sum())

    assert own_peak(Reading(32, 4), (X,), {}, [True]) is None


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_plan_compares_with_the_model_as_it_is(reentrant: bool) -> None:
    model, x = Checkpointed(True, reentrant), X.clone().requires_grad_()
    with pytest.warns(UserWarning, match=r"checkpoints is at \d\d%"):
        remate.plan(model, (x,), budget="60%", cost="cpu", effort="quick", progress=None)
