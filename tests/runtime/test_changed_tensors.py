"""Parameters, buffers and attributes that became something else: refused with their names and with advice, never by a
raw error."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import BindError, apply
from remate_runtime.errors import ExecutionError, RemateError

from .small import data, seeded
from .stepping import schedule_of


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.scale = torch.ones(8)

    def forward(self, x):
        return self.norm(torch.tanh(self.layer(x)) * self.scale).square().mean()


def replaced(name: str, value: Any) -> Any:
    def change(model: nn.Module) -> None:
        path, _, key = name.rpartition(".")
        setattr(model.get_submodule(path), key, value())

    return change


CHANGES = {
    "weight_norm": lambda model: nn.utils.parametrizations.weight_norm(model.layer),
    "spectral_norm": lambda model: nn.utils.parametrizations.spectral_norm(model.layer),
    "a float": replaced("scale", lambda: 2.0),
    "a list": replaced("scale", lambda: [1.0]),
    "None": replaced("scale", lambda: None),
    "sparse": replaced("scale", lambda: torch.ones(8).to_sparse()),
    "nested": replaced("scale", lambda: torch.nested.nested_tensor([torch.ones(8)])),
    "quantised": replaced("scale", lambda: torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8)),
    "a parameter without a shape": replaced("layer.weight", nn.UninitializedParameter),
    "no bias": replaced("layer.bias", lambda: None),
    "no statistics": replaced("norm.running_mean", lambda: None),
}


@pytest.mark.quick("after-spectral_norm")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "after", "after a call"])
def test_what_became_of_a_tensor_is_refused(change, when):
    model, x = seeded(Scaled()), data(4, 8)
    schedule = schedule_of(model, (x,))
    if when == "before":
        CHANGES[change](model)
        with pytest.raises(RemateError):
            apply(model, schedule)
        return
    planned = apply(model, schedule)
    if when == "after a call":
        planned(x).backward()
    CHANGES[change](model)
    with pytest.raises(RemateError):
        planned(x)


def test_a_parametrization_is_named_with_advice():
    model, x = seeded(Scaled()), data(4, 8)
    schedule = schedule_of(model, (x,))
    nn.utils.parametrizations.weight_norm(model.layer)
    with pytest.raises(BindError, match=r"'layer\.weight'.*a parametrization computes: plan the model as it is now"):
        apply(model, schedule, stale="warn")


@pytest.mark.quick("<lambda>0")
@pytest.mark.parametrize("given", [lambda: data(4, 8).to_sparse(), lambda: torch.nested.nested_tensor([data(4, 8)])])
@pytest.mark.filterwarnings("ignore")
def test_inputs_without_strides_are_refused(given):
    model, x = seeded(Scaled()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    with pytest.raises(BindError, match=r"the input 'x' must be f32\[4,8\] on cpu, got a .* tensor"):
        planned(given())


def test_the_default_type_may_change_between_forward_and_backward():
    model, x = seeded(nn.Sequential(nn.Linear(8, 520), nn.Linear(520, 520), nn.Linear(520, 520))), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    out = planned(x).sum()
    torch.set_default_dtype(torch.float64)
    try:
        out.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(left, p.grad) for left, p in zip(ours, model.parameters(), strict=True))


def test_another_default_type_is_refused_at_calls():
    model, x = seeded(Scaled()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x).backward()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(BindError, match=r"default dtype was torch\.float32 .* now it is torch\.float64"):
            planned(x)
    finally:
        torch.set_default_dtype(torch.float32)
    planned(x).backward()


@pytest.mark.slow("weight")
@pytest.mark.parametrize("write", ["numpy", "data", "weight"])
def test_writes_that_torch_does_not_notice_are_noticed_in_checked_calls(write):
    model, x = seeded(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify=2)
    for checked in (True, False, True):
        loss = planned(x).square().mean()
        if write == "numpy":
            x.numpy()[0] += 1
        else:
            (x if write == "data" else model[0].weight).data.mul_(2)
        if checked:
            with pytest.raises(ExecutionError, match="was written to between forward and backward"):
                loss.backward()
        else:
            loss.backward()
    planned(x).sum().backward()


class Doubling(torch.Tensor):
    """Doubles what linear layers compute."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.detach:
            return result.as_subclass(cls)
        return result * 2 if func is nn.functional.linear else result


class DoublingParameter(Doubling, nn.Parameter):
    pass


def test_a_parameter_of_a_class_that_replaces_functions_is_refused():
    model, x = seeded(Scaled()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify="never")
    planned(x).backward()
    weight = model.layer.weight
    model.layer.weight = nn.Parameter(weight.detach().as_subclass(Doubling))
    with pytest.raises(BindError, match=r"'layer\.weight': is a Doubling now, whose __torch_function__"):
        planned(x)
    model.layer.weight = weight
    planned(x).backward()
    weight.__class__ = DoublingParameter
    with pytest.raises(BindError, match=r"'layer\.weight': is a DoublingParameter now"):
        planned(x)


class Plain(nn.Parameter):
    """A class that replaces nothing, as optimizers and libraries have to mark parameters."""


def test_a_parameter_of_another_class_is_taken():
    model, x = seeded(Scaled()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify="never")
    planned(x).backward()
    model.layer.weight = Plain(model.layer.weight.detach())
    planned(x).backward()
    assert model.layer.weight.grad is not None


def test_data_that_is_replaced_between_forward_and_backward_is_refused():
    model, x = seeded(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)), verify="never")
    loss = planned(x).square().mean()
    model[2].weight.data = model[2].weight.data * 2
    with pytest.raises(ExecutionError, match=r"parameter '2\.weight' got other data between forward and backward"):
        loss.backward()
    loss = planned(x).square().mean()
    kept = model[2].weight.data
    model[2].weight.data = kept * 3
    model[2].weight.data = kept
    loss.backward()


def test_an_optimizer_in_backward_may_replace_data():
    model, x = seeded(nn.Sequential(nn.Linear(8, 520), nn.Linear(520, 520), nn.Linear(520, 520))), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))

    def update(parameter: Any) -> None:
        parameter.data = parameter.data - 0.1 * parameter.grad
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    before = model[0].weight.detach().clone()
    planned(x).square().mean().backward()
    assert not torch.equal(before, model[0].weight)


def test_parameters_may_be_swapped_after_planning():
    model, twin, x = seeded(Scaled()), seeded(Scaled()), torch.randn(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x).backward()
    gc.collect()  # cycles of the trace that are garbage
    for each in (model, twin):
        each.zero_grad()
        # torch refuses a tensor with weak references, which a trace must not leave behind
        torch.utils.swap_tensors(each.layer.weight, nn.Parameter(torch.eye(8)))
    planned(x).backward()
    twin(x).backward()
    assert torch.equal(model.layer.weight.grad, twin.layer.weight.grad)
