"""What a step promises, from its events alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import EngineError, apply
from remate_runtime.flat_step.graph import Graph, Op, Ref, Value
from remate_runtime.format.signature import Leaf
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.link import StepContract, link, step_contract
from remate_runtime.link.contract import Gradient, Output, Tangent, Watched

from .small import Mlp, data, seeded
from .stepping import everything, schedule_of


def graph() -> Graph:
    """a = p + x, y = relu(a); b takes a. Backward reads y, p and the old b; z is a second output that nobody reads."""
    kind = parse_type("f32[4]")
    values = (Value("x", kind, "input"), Value("p", kind, "parameter"), Value("b", kind, "buffer"))
    values += (Value("a", kind, "op", 0), Value("y", kind, "op", 1), Value("z", kind, "op", 2))
    values += (Value("grad.y", kind, "tangent"), Value("grad.z", kind, "tangent"), Value("g", kind, "op", 3))
    reads = ((1, 0), (3,), (3,), (6, 4, 1, 2))
    ops = tuple(
        Op(f"op{i}", "aten.cos", tuple(map(Ref, r)), {}, r, (produced,), False, False, False)
        for i, (r, produced) in enumerate(zip(reads, (3, 4, 5, 8), strict=True))
    )
    return Graph(values, ops, 3, (4, 5), ((0, 8), (1, 8)), ((2, 3),), tuple(range(9)))


def test_contract() -> None:
    leaves = [Leaf("y", "%y", True, ""), Leaf("z", "%z", True, ""), Leaf("again", "%y", False, "")]
    assert step_contract(link(graph()), leaves, ["p", "b", "x"]) == StepContract(
        sources=(1, 2, 0),
        outputs=(Output("y", 4, True, False), Output("z", 5, True, False), Output("again", 4, False, False)),
        updates=((1, 3),),
        preserved=(2,),
        gradients=(Gradient(8, 2, False, frozenset({6})), Gradient(8, 0, True, frozenset({6}))),
        deliveries=((0, 1),),
        watched_sources=(Watched(0, "parameter 'p'", 0),),
        watched_outputs=(Watched(0, "output 'y'"), Watched(2, "output 'y'")),
        tangents=(Tangent(6, 0, parse_type("f32[4]")),),
        undelivered=(1,),
    )


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    model = seeded(Mlp())
    schedule = schedule_of(model, (data(4, 8),), recomputes=everything)
    with pytest.raises(EngineError, match=r"no engine 'swift'\n  the engines: 'eager' \(calls one operator after"):
        apply(model, schedule, engine="swift")


class ReturnsItsBuffer(nn.Module):
    """The buffer is an output, is updated, and is among what backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.norm(x).pow(3).sum(), self.norm.running_mean


def test_an_output_that_is_a_buffer_shows_its_update() -> None:
    x, results = data(8, 4), []
    schedule = schedule_of(ReturnsItsBuffer(), (x,), recomputes=everything)
    for module in (ReturnsItsBuffer(), apply(ReturnsItsBuffer(), schedule)):
        rows = []
        for _ in range(2):
            module.zero_grad()
            loss, mean = module(x)
            loss.backward()
            held: tuple[Any, ...] = (loss, mean, module.norm.weight.grad, module.norm.running_mean)
            rows += [tensor.detach().clone() for tensor in held]
        results.append(rows)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
