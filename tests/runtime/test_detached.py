"""Outputs that the step was planned without a gradient for: they refuse one, and are otherwise as eager's."""

from __future__ import annotations

import dataclasses
import functools
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
        for actual, wanted in zip(trained(planned, loss), trained(model, loss), strict=True):
            assert torch.equal(actual, wanted)
    assert planned(X)["index"].requires_grad is False


@pytest.mark.quick("Made")
@pytest.mark.parametrize("kind", [lambda **parts: tuple(parts.values()), lambda **parts: list(parts.values()), Made])
def test_so_in_tuples_and_records(kind):
    model = seeded(Diffusion(kind))
    planned = apply(model, schedule_of(model, (X,), differentiate=["*"]))

    def loss(out):
        eps, aux = (out.eps, out.aux) if isinstance(out, Made) else out[:2]
        return eps.sum() + aux

    for actual, wanted in zip(trained(planned, loss), trained(model, loss), strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.quick("<lambda>1")
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
    for actual, wanted in zip(trained(planned, first), trained(model, first), strict=True):
        assert torch.equal(actual, wanted)


class Headed(nn.Module):
    """A parameter that only the output without a gradient depends on, and an input that comes from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return {"loss": hidden.square().mean(), "scores": self.head(hidden)}


@functools.cache
def of_headed():
    return schedule_of(seeded(Headed()), (data(3, 4).requires_grad_(),))


REQUESTED = {
    "all": lambda model, x: list(model.parameters()),
    "one": lambda model, x: [model.body.bias],
    "of that output alone": lambda model, x: [model.head.weight],
    "an activation before the model": lambda model, x: [x],
    "some, in another order": lambda model, x: [model.head.bias, x, model.body.weight],
}


@pytest.mark.quick("False-some, in another order-options1")
@pytest.mark.parametrize("options", [{}, {"allow_unused": True}, {"allow_unused": True, "materialize_grads": True}])
@pytest.mark.parametrize("requested", REQUESTED)
@pytest.mark.parametrize("frozen", [False, True])
def test_it_refuses_whatever_is_requested_for(requested, options, frozen):
    model = seeded(Headed())
    planned = apply(model, of_headed())
    leaf = data(3, 4).requires_grad_()
    if frozen:
        model.body.requires_grad_(False)
    before = leaf * 2
    wanted = [tensor for tensor in REQUESTED[requested](model, before) if tensor.requires_grad]
    for loss in (lambda out: out["scores"].sum(), lambda out: out["loss"] + out["scores"].sum()):
        if not wanted:
            continue
        with pytest.raises(ExecutionError, match="a gradient arrived for the output 'scores'"):
            torch.autograd.grad(loss(planned(before)), wanted, **options)
        with pytest.raises(ExecutionError, match="a gradient arrived for the output 'scores'"):
            loss(planned(before)).backward(inputs=wanted)
    for requested_for in ([*model.parameters(), before], [before]):
        requested_for = [tensor for tensor in requested_for if tensor.requires_grad]
        for ours, theirs in zip(
            torch.autograd.grad(planned(before)["loss"], requested_for, allow_unused=True),
            torch.autograd.grad(model(before)["loss"], requested_for, allow_unused=True),
            strict=True,
        ):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs)


def test_a_gradient_for_the_output_itself_is_one():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    out = planned(X)
    (gradient,) = torch.autograd.grad(out["eps"].square().sum() + out["loss"] * 0, out["eps"])
    assert torch.equal(gradient, 2 * out["eps"])


def first(out):
    return out["loss"]


def test_what_was_requested_for_has_its_gradient():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,), differentiate=["loss", "eps"]))

    def loss(out):
        return out["loss"] * 2 + out["eps"].sum()

    for actual, wanted in zip(trained(planned, loss), trained(model, loss), strict=True):
        assert torch.equal(actual, wanted)
    with pytest.raises(ExecutionError, match=r"'hidden\.0'.*\n.*differentiate=\['loss', 'eps', 'hidden\.0'\]"):
        planned(X)["hidden"][0].sum().backward()


def test_other_uses_of_such_outputs_are_as_in_eager():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    for module in (model, planned):
        module.zero_grad()
        out = module(X)
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


def test_detached_outputs_hold_no_values_of_a_step_that_is_over():
    model = seeded(Training())
    planned = apply(model, schedule_of(model, (X,)))
    out = planned(X)
    kept = out["eps"]
    out["loss"].backward()
    del out
    (anchor, _), *others = kept.grad_fn.next_functions
    (step, _), *parameters = anchor.next_functions
    assert not others
    assert not parameters
    assert step.frame.residue is None
    assert not any(isinstance(part, torch.Tensor) for part in step.frame.tangents)


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
