"""Models that write into parts of a tensor: the step writes in place as eager does, and computes the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remate
from remate.capture import simplify
from remate.errors import InfeasibleError
from remate_runtime import apply
from remate_runtime.link.events import Run
from remate_runtime.link.verifier import verify
from remate_runtime.staleness import compare_models

Write = Callable[[Tensor, Tensor], Tensor]


class Writing(nn.Module):
    """Two layers around a function of what the first makes and of the input."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.into, self.out, self.write = nn.Linear(8, 8), nn.Linear(8, 8), write
        self.register_buffer("cache", torch.zeros(2, 6, 8))
        self.table = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.write(self.into(x).sin().clone(), x)
        return self.out(torch.tanh(y)).square().mean() + self.table[[0, 0, 3]].sum()


def stepwise(y: Tensor, x: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for t in range(y.shape[1]):
        out[:, t] = y[:, t] * x[:, t] + (out[:, t - 1] if t else 0)
    return out


def sliced(y: Tensor, x: Tensor) -> Tensor:
    y[:, ::2] *= 2
    y[:, 1:5] += x[:, 1:5]
    y[..., :3] = torch.tanh(y[..., :3])
    return y


def twice(y: Tensor, x: Tensor) -> Tensor:
    y[:, 1:3] = x[:, 1:3] + y[:, 1:3]
    y[:, 1:3] = 2 * y[:, 3:5]
    return y


def read_between(y: Tensor, x: Tensor) -> Tensor:
    before = y[:, 1:3] * 1.0
    y[:, 1:3] = x[:, 1:3]
    middle = y.sum(1, keepdim=True)
    y[:, 1:3] = before
    return y + middle


def identity(y: Tensor, x: Tensor) -> Tensor:
    y[:, 2:4] = y[:, 2:4]
    y[:, 2:4] = y[:, 2:4].clone()
    return y


def kept(y: Tensor, x: Tensor) -> Tensor:
    other = y.clone()
    other[:, 0] = 0.0
    return y * other


def crossed(y: Tensor, x: Tensor) -> Tensor:
    y[:, 0:2], y[:, 2:4] = y[:, 2:4].clone(), y[:, 0:2].clone()
    y.transpose(0, 1)[1] += x[:, 1]
    y.diagonal(dim1=1, dim2=2).mul_(3.0)
    return y


def broadcast(y: Tensor, x: Tensor) -> Tensor:
    y[:, 1:4] = x[:, :1]
    y[:, 5] = torch.arange(8)
    return y


def nested(y: Tensor, x: Tensor) -> Tensor:
    y[:, 1:5][:, ::2][..., 3] = x[:, :2, 0].exp()
    y.view(2, 48)[:, 5:9] *= 0.5
    return y


def indexed(y: Tensor, x: Tensor) -> Tensor:
    at = torch.tensor([0, 2, 2])
    y[:, at] = x[:, :3] * 2
    y.index_add_(1, at, x[:, 3:])
    y.scatter_(1, torch.zeros(2, 1, 8, dtype=torch.long), x[:, :1])
    return y.index_copy(1, at[:2], x[:, 4:])


def masked(y: Tensor, x: Tensor) -> Tensor:
    y[x > 0] = 0.25
    y.masked_fill_(x < -1, -2.0)
    return y.masked_scatter(x > 1, x * 3).scatter_add(2, torch.ones(2, 6, 3, dtype=torch.long), x[..., :3])


WRITES: list[Write] = [
    stepwise,
    sliced,
    twice,
    read_between,
    identity,
    kept,
    crossed,
    broadcast,
    nested,
    indexed,
    masked,
    lambda y, x: y.addcmul_(x, y.clone(), value=0.5).lerp_(x, 0.25),
]


@pytest.mark.quick("identity")
@pytest.mark.parametrize("write", WRITES, ids=lambda left: left.__name__.replace("<lambda>", "arithmetic"))
def test_gradients_are_eagers_to_the_bit(write: Write) -> None:
    model, x = Writing(write), torch.randn(2, 6, 8, requires_grad=True)
    for budget in ("100%", "90%", "75%"):
        try:
            schedule = remate.plan(model, (x,), budget=budget, cost="cpu", effort="quick")
        except InfeasibleError:
            continue
        assert compare_models(model, apply(model, schedule), (x,), steps=2).bitwise


def operators(write: Write) -> list[tuple[str, bool]]:
    """What runs, and whether in place."""
    schedule = remate.plan(Writing(write), (torch.randn(2, 6, 8),), budget="100%", cost="cpu")
    linked = verify(schedule, "").linked
    runs = [event for event in linked.events if isinstance(event, Run)]
    return [(linked.graph.operations[run.op].op, run.overwrites is not None) for run in runs]


def test_a_loop_that_fills_a_tensor_writes_in_place() -> None:
    writes = [in_place for name, in_place in operators(stepwise) if name == "aten.select_scatter"]
    assert len(writes) >= 6
    assert all(writes)


@pytest.mark.slow
def test_writes_come_without_copies() -> None:
    """Eager copies nothing in forward; in backward the part of the gradient that the write took over."""
    runs = operators(sliced)
    assert [name for name, _ in runs if name == "aten.copy"] == []
    assert sum(name == "aten.slice_scatter" for name, _ in runs) == 7  # three writes, their gradients, and one product
    nothing = operators(lambda y, x: y)
    backward_start = nothing.index(("aten.sum", False)) + 1  # forward ends with it
    assert operators(identity)[:backward_start] == nothing[:backward_start]


def shared(model: nn.Module, x: Tensor) -> list[tuple[int, int]]:
    """Return which outputs, and which outputs and sources, share a storage."""
    at = [tensor.untyped_storage().data_ptr() for tensor in (*model(x), x, *model.parameters())]
    return [(item, other) for item in range(len(at)) for other in range(item) if at[item] == at[other]]


class Returning(nn.Module):
    def __init__(self, make: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.weight, self.make = nn.Parameter(torch.randn(8)), make

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (*self.make(x, x * self.weight, self.weight), (x * self.weight).sum())


@pytest.mark.slow("<lambda>0")
@pytest.mark.parametrize(
    "make",
    [
        lambda x, y, w: (torch.slice_scatter(x, x[:, 2:4], 1, 2, 4),),
        lambda x, y, w: (torch.slice_scatter(x, x[:, 2:4], 1, 2, 4).view(-1),),
        lambda x, y, w: (torch.slice_scatter(w, w[2:4], 0, 2, 4),),
        lambda x, y, w: (y, torch.slice_scatter(y, y[:, 2:4], 1, 2, 4)),
        lambda x, y, w: (y, y.clone().view(-1)),
        lambda x, y, w: (y.view(-1), y.clone().t()),
        lambda x, y, w: (y, y.view(-1)),
    ],
)
def test_outputs_lie_apart_as_eagers_do(make: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> None:
    """Whoever writes into one would change an input, a parameter or another output."""
    model, x = Returning(make), torch.randn(8, 8)
    planned = apply(model, remate.plan(model, (x,), budget="100%", cost="cpu"))
    assert shared(planned, x) == shared(model, x)


class Telling(nn.Module):
    """Returns constants: one that it computes with, a view of it, and one for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weights = torch.tensor([1.0, 2.0, 3.0])
        return self.layer(x) * weights, weights, weights[1:], torch.tensor([5, 6])


@pytest.mark.quick("False")
@pytest.mark.parametrize("copied", [True, False])
def test_constants_that_were_returned_may_be_written(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager makes them anew in each call: what a loop does to one is no matter of the next step. copied: by the step,
    as captures are; else by the runtime, since other files may return a constant itself."""
    if not copied:
        monkeypatch.setattr(simplify, "_copy_leaving_constants", lambda graph, results: None)
    torch.manual_seed(0)
    model, x = Telling(), torch.randn(2, 3)
    planned = apply(model, remate.plan(model, (x,), budget="100%", cost="cpu"))
    for grad in (True, False, True):
        with torch.set_grad_enabled(grad):
            actual, wanted = planned(x), model(x)
        for left, right in zip(actual, wanted, strict=True):
            assert torch.equal(left, right)
        if grad:
            ours, eagers = (torch.autograd.grad(out[0].sum(), model.layer.weight)[0] for out in (actual, wanted))
            assert torch.equal(ours, eagers)
        for left in actual[1:]:
            left.mul_(7)
        assert not copied or torch.equal(actual[1][1:], actual[2])


def added(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    model.memory.add_(x.detach().mean())
    return model.layer(x) * model.memory.sum(), model.memory


def viewed(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    model.memory.mul_(0.5)
    return model.layer(x), model.memory[1:], model.memory.t(), model.memory.detach()


def assigned(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    model.memory = model.memory * 0.5 + x.detach().mean()
    return model.layer(x), model.memory, model.memory[:1].view(-1)


def apart(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    new = model.memory + 1
    model.memory.copy_(new)
    return model.layer(x), new


def before(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    old = model.memory.clone()
    model.memory.add_(1)
    return model.layer(x) * old.sum(), old


class Remembering(nn.Module):
    def __init__(self, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.layer, self.run = nn.Linear(3, 3), run
        self.register_buffer("memory", torch.ones(2, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.run(self, x)


@pytest.mark.slow("before")
@pytest.mark.parametrize("run", [added, viewed, assigned, apart, before])
def test_an_updated_buffer_that_is_returned_is_the_buffer(run: Callable[..., tuple[Tensor, ...]]) -> None:
    """A loop sets a memory to zero where an episode ends: what it writes into is what the next step reads, where it is
    in eager."""
    torch.manual_seed(0)
    x = torch.randn(2, 3)
    model: Any = Remembering(run)
    planned = apply(copy.deepcopy(model), remate.plan(model, (x,), budget="100%", cost="cpu"))
    for grad in (True, False, True, True):
        kept = []
        for module in (planned, model):
            module.zero_grad()
            with torch.set_grad_enabled(grad):
                first, *rest = module(x)
            if grad:
                first.sum().backward()
            kept.append([first.detach(), *(tensor.clone() for tensor in rest), module.layer.weight.grad])
            for tensor in rest:
                tensor.mul_(3)
            kept[-1].append(module.memory.clone())
        for ours, wanted in zip(*kept, strict=True):
            assert ours is wanted is None or torch.equal(ours, wanted)
