"""Outputs that others are made from: what hangs on their gradients is refused, where a schedule would miss it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import ExecutionError, apply

from .small import data, seeded
from .stepping import schedule_of


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        features = torch.tanh(self.a(x))
        logits = self.b(features)
        return {"features": features, "logits": logits, "other": self.a.weight * 2, "loss": logits.square().mean()}


X = data(3, 4)
HANGS = {
    "a hook": lambda tensor: tensor.register_hook(lambda gradient: gradient * 2),
    "retain_grad": lambda tensor: tensor.retain_grad(),
}


def planned_with(differentiate: list[str] | None) -> tuple[Any, Any]:
    model = seeded(Features())
    return model, apply(model, schedule_of(model, (X,), differentiate=differentiate))


@pytest.mark.quick("features-a hook-differentiate1")
@pytest.mark.parametrize("differentiate", [None, ["loss"], ["loss", "features", "logits"]])
@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("name", ["features", "logits"])
def test_a_gradient_that_would_be_missed_is_refused(differentiate, hang, name):
    _, planned = planned_with(differentiate)
    out = planned(X)
    HANGS[hang](out[name])
    with pytest.raises(ExecutionError, match=f"the output '{name}' has .*other outputs, which the model makes from it"):
        out["loss"].backward()


@pytest.mark.quick("a hook")
@pytest.mark.parametrize("hang", HANGS)
def test_gradients_that_do_not_pass_through_an_output_leave_it_alone(hang):
    for module in (planned_with(["features", "loss", "other"])[1], planned_with(["loss"])[1]):
        out = module(X)
        HANGS[hang](out["other"])
        HANGS[hang](out["loss"])
        out["loss"].backward()


def test_hooks_act_on_gradients_that_come_from_outside():
    model, planned = planned_with(["features", "logits"])
    rows = []
    for module, hooked in ((model, ["logits"]), (planned, ["logits"]), (model, ["features"]), (planned, ["features"])):
        module.zero_grad()
        out = module(X)
        for name in hooked:
            HANGS["a hook"](out[name])
            out[name].retain_grad()
        out[hooked[0]].sum().backward()
        rows.append([out[hooked[0]].grad, *(p.grad for p in module.parameters())])
    for theirs, ours in (rows[:2], rows[2:]):
        for left, right in zip(theirs, ours, strict=True):
            assert (left is None) == (right is None)
            assert left is None or torch.equal(left, right)


def test_outputs_may_be_written_into():
    model, planned = planned_with(["features", "logits"])
    rows = []
    for module in (model, planned):
        module.zero_grad()
        out = module(X)
        out["logits"].mul_(2)
        out["logits"].sum().backward()
        rows.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    assert all(torch.equal(left, right) for left, right in zip(*rows, strict=True))


def test_hooks_of_torch_look_only():
    from torch.utils.hooks import unserializable_hook

    _, planned = planned_with(None)
    out = planned(X)
    out["features"].register_hook(unserializable_hook)
    out["loss"].backward()
    assert planned.a.weight.grad is not None
