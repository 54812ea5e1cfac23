"""Outputs that the step was planned without a gradient for: they refuse one, and are otherwise as eager's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import ExecutionError, apply

from .small import data, seeded
from .stepping import schedule_of


class Diffusion(nn.Module):
    """A real output and a scalar beside it; `kind` makes what holds them."""

    def __init__(self, kind=dict) -> None:
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(4, 4), nn.Linear(4, 4), kind

    def forward(self, x):
        eps = self.b(torch.tanh(self.a(x)))
        return self.kind(eps=eps, aux=eps.square().mean(), index=eps.argmax(-1))


class Training(Diffusion):
    def forward(self, x):
        eps = self.b(torch.tanh(self.a(x)))
        return {"loss": eps.square().mean(), "eps": eps, "hidden": [self.a.weight * 2]}


@dataclasses.dataclass
class Made:
    eps: torch.Tensor
    aux: torch.Tensor
    index: torch.Tensor


X = data(3, 4)


def gradients(model: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def trained(model, loss):
    model.zero_grad()
    loss(model(X)).backward()
    return gradients(model)


def test_a_scalar_beside_the_real_output_keeps_both_gradients():
    model = seeded(Diffusion())
    planned = apply(model, schedule_of(model, (X,)))
    for loss in (
        lambda out: out["eps"].sum() + out["aux"],
        lambda out: out["eps"].sum(),
        lambda out: out["aux"] * out["eps"].mean() + out["eps"].std() + out["aux"],
    ):
        for found, wanted in zip(trained(planned, loss), trained(model, loss), strict=True):
            assert torch.equal(found, wanted)
    assert planned(X)["index"].requires_grad is False


@pytest.mark.parametrize("kind", [lambda **parts: tuple(parts.values()), lambda **parts: list(parts.values()), Made])
def test_so_in_tuples_and_records(kind):
    model = seeded(Diffusion(kind))
    planned = apply(model, schedule_of(model, (X,)))

    def loss(out):
        eps, aux = (out.eps, out.aux) if isinstance(out, Made) else out[:2]
        return eps.sum() + aux

    for found, wanted in zip(trained(planned, loss), trained(model, loss), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: out["eps"].sum(),
        lambda out: out["loss"] + out["eps"].sum(),
        lambda out: out["eps"].sum() * 0.0 + out["loss"],
        lambda out: torch.cat([out["loss"][None], out["eps"].flatten()]).sum(),
    ],
)
def test_a_field_called_loss_is_the_choice_and_others_refuse_a_gradient(loss):
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    planned.zero_grad()
    with pytest.raises(ExecutionError, match=r"arrived for the output 'eps'.*\n.*differentiate=\['loss', 'eps'\]"):
        loss(planned(X)).backward()
    assert gradients(planned) == [None] * 4
    for found, wanted in zip(trained(planned, first), trained(model, first), strict=True):
        assert torch.equal(found, wanted)


def first(out):
    return out["loss"]


def test_what_was_requested_for_has_its_gradient():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,), differentiate=["loss", "eps"]))

    def loss(out):
        return out["loss"] * 2 + out["eps"].sum()

    for found, wanted in zip(trained(planned, loss), trained(model, loss), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(ExecutionError, match=r"'hidden\.0'.*\n.*differentiate=\['loss', 'eps', 'hidden\.0'\]"):
        planned(X)["hidden"][0].sum().backward()


def test_other_uses_of_such_outputs_are_as_in_eager():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    for one in (model, planned):
        one.zero_grad()
        out = one(X)
        log = out["eps"].detach().numpy().copy()
        logged = (out["eps"].detach() + 1).sum().item() + out["eps"].argmax().item()
        assert out["eps"].requires_grad
        with torch.no_grad():
            assert not (out["eps"] * 2).requires_grad
        (out["loss"] + out["eps"].detach().sum()).backward()
        assert log.shape == (3, 4)
        assert logged == logged
    assert all(torch.equal(a, b) for a, b in zip(trained(planned, first), trained(model, first), strict=True))
    with torch.no_grad():
        assert not planned(X)["eps"].requires_grad
    with torch.inference_mode():
        planned(X)
    out = planned(X)["hidden"][0]
    out.add_(1)
    assert out.requires_grad


def test_where_nothing_requires_grad_there_is_no_history():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    planned.requires_grad_(False)
    out = planned(X)
    assert not out["loss"].requires_grad
    assert not out["eps"].requires_grad


def test_detached_outputs_hold_nothing_of_the_step():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    out = planned(X)
    kept = out["eps"]
    out["loss"].backward()
    del out
    assert kept.grad_fn.next_functions[0][0].variable.numel() == 0
    assert len(kept.grad_fn.next_functions) == 1


class HandingOn(torch.autograd.Function):
    """As DistributedDataParallel's: all outputs pass through one node, which hands on what arrived."""

    @staticmethod
    def forward(ctx, *outputs):
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


def test_no_gradient_is_no_gradient():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))

    def loss(out):
        return HandingOn.apply(out["loss"], out["eps"])[0]

    assert all(torch.equal(a, b) for a, b in zip(trained(planned, loss), trained(model, loss), strict=True))
    with pytest.raises(ExecutionError, match="a gradient arrived for the output 'eps'"):
        HandingOn.apply(planned(X)["loss"], planned(X)["eps"])[1].sum().backward()
