"""Backward passes that ask for some gradients at a time: torch.autograd.grad for subsets, and zero-bubble pipelines."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from remate_runtime import ExecutionError, apply

from .small import data, seeded
from .stepping import everything, no_recomputes, schedule_of


class Stage(nn.Module):
    """Gradients come in several deliveries: two layers are larger than what is delivered at a time. `skip`: the input
    is read by the last layer, too, so that its own gradient comes before those of the first."""

    def __init__(self, width: int = 520, late: bool = False) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(8, width), nn.Linear(width, width)
        self.second, self.last = nn.Linear(width, width), nn.Linear(width, 8)
        self.late = late

    def forward(self, x):
        hidden = torch.tanh(self.first(torch.ones_like(x) if self.late else x))
        hidden = torch.tanh(self.second(torch.tanh(self.inner(hidden))))
        return self.last(hidden) * x if self.late else self.last(hidden)


STAGES = {"small": lambda: Stage(12), "large": Stage, "input read late": lambda: Stage(late=True)}


def pair(stage: str, recomputes: Any = everything) -> tuple[Any, Any, torch.Tensor]:
    """A model, the same with a schedule, and an input."""
    model = seeded(STAGES[stage]())
    x = data(4, 8).requires_grad_()
    return model, apply(model, schedule_of(model, (x,), recomputes=recomputes)), x


def same(ours: Any, theirs: Any) -> bool:
    return all(
        (left is None) == (right is None) and (left is None or torch.equal(left, right))
        for left, right in zip(ours, theirs, strict=True)
    )


def zero_bubble(module: nn.Module, microbatches: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of inputs, of parameters before the weights' turn, and of parameters after it."""
    module.zero_grad()
    inputs = [x.detach().requires_grad_() for x in microbatches]
    outputs = [module(x) for x in inputs]
    half = [
        stage_backward_input([out], [torch.ones_like(out)], [x], module.parameters())
        for x, out in zip(inputs, outputs, strict=True)
    ]
    results = [dx[0] for dx, _ in half] + [parameter.grad for parameter in module.parameters()]
    for _, groups in half:
        stage_backward_weight(module.parameters(), groups)
    return results + [None if p.grad is None else p.grad.clone() for p in module.parameters()]


@pytest.mark.quick("small-everything")
@pytest.mark.parametrize("recomputes", [everything, no_recomputes])
@pytest.mark.parametrize("stage", STAGES)
def test_zero_bubble_pipelines_have_the_gradients_of_parameters(stage, recomputes):
    model, planned, x = pair(stage, recomputes)
    for microbatches in ([x], [x, x * 2, x - 1]):
        ours, theirs = zero_bubble(planned, microbatches), zero_bubble(model, microbatches)
        assert all(gradient is not None for gradient in theirs[-8:])
        assert same(ours, theirs)


@pytest.mark.quick("True-small")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("backward", [False, True])
def test_subsets_are_requested_for_in_any_order(stage, backward):
    model, planned, x = pair(stage)
    names = ["first.bias", "inner.weight", "second.weight", "last.bias"]
    tensors = dict(model.named_parameters())
    for order in [
        *itertools.permutations(names),
        ("last.bias", "x"),
        ("x", *names),
        ("first.weight", "x", "last.weight"),
    ]:
        passes = []
        for module in (planned, model):
            loss = module(x).square().sum()
            rows = []
            for at, name in enumerate(order):
                requested: Any = x if name == "x" else tensors[name]
                keep = at + 1 < len(order)
                if backward:
                    requested.grad = None
                    loss.backward(inputs=[requested], retain_graph=keep)
                    gradient: Any = requested.grad
                    rows.append(gradient.clone())
                else:
                    rows += torch.autograd.grad(loss, [requested], retain_graph=keep)
            passes.append(rows)
        assert same(*passes)


def test_the_rest_comes_with_a_full_backward():
    model, planned, x = pair("large")
    passes = []
    for module in (planned, model):
        module.zero_grad()
        x.grad = None
        loss = module(x).square().sum()
        (norm,) = torch.autograd.grad(loss, [x], retain_graph=True)
        loss.backward(inputs=list(module.parameters()))
        passes.append([norm, x.grad, *(p.grad.clone() for p in module.parameters())])
    assert same(*passes)


def test_what_was_given_is_refused_a_second_time():
    _, planned, x = pair("large")
    loss = planned(x).square().sum()
    torch.autograd.grad(loss, [planned.last.weight], retain_graph=True)
    with pytest.raises(ExecutionError, match="a second time"):
        torch.autograd.grad(loss, [planned.last.weight, planned.first.weight], retain_graph=True)
    loss = planned(x).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(ExecutionError, match="a second time"):
        loss.backward()


def test_other_gradients_of_the_outputs_are_refused():
    _, planned, x = pair("large")
    out = planned(x)
    torch.autograd.grad(out.sum(), [planned.last.weight], retain_graph=True)
    with pytest.raises(ExecutionError, match="a second time"):
        torch.autograd.grad(out.square().sum(), [planned.first.weight])
    out = planned(x)
    torch.autograd.grad(out.sum(), [planned.last.weight], retain_graph=True)
    with pytest.raises(ExecutionError, match="no second derivatives"):
        torch.autograd.grad(out.sum(), [planned.first.weight], create_graph=True)


def test_nothing_is_kept_where_all_is_requested_for_or_the_graph_goes():
    _, planned, x = pair("large")
    out = planned(x)
    frame = out.grad_fn.frame
    out.sum().backward(retain_graph=True)
    assert frame.undelivered is None
    out = planned(x)
    frame = out.grad_fn.frame
    torch.autograd.grad(out.sum(), [x])
    assert frame.undelivered is None


def test_hooks_of_nodes_see_the_gradients_that_arrive():
    _, planned, x = pair("small")
    out = planned(x)
    seen = []
    out.grad_fn.register_prehook(lambda gradients: seen.append(gradients))
    out.register_hook(lambda gradient: gradient * 2)
    out.sum().backward()
    assert torch.equal(seen[0][0], torch.full_like(out, 2))
    before = planned.last.bias.grad.clone()
    planned.zero_grad()
    (planned(x) * 2).sum().backward()
    assert torch.equal(planned.last.bias.grad, before)
