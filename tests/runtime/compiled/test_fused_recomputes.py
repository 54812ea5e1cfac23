"""Elementwise operations that run again in backward of themselves, where that is free."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import apply
from remate_runtime.engine.compiled.fused_recomputes import planned_recomputes, with_fused_recomputes
from remate_runtime.engine.compiled_step import LinkedStep
from remate_runtime.flat_step import FlatRecompute
from remate_runtime.link import RecomputeRun, Run, link, simulate
from remate_runtime.link.contract import keeps_contract

from ..small import data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes
from .subjects import assert_close
from .test_memory import linked_step, step_of

X = data(64, 16)
ELEMENTWISE = ("add", "mul", "pow", "tanh")


class Layer(nn.Module):
    """With an activation of many operations, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.wide(self.norm(x))
        return x + self.narrow(0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.044715 * torch.pow(h, 3.0)))))


class Layers(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Elementwise(nn.Module):
    """body: on a tensor that a product has made, the input, and a parameter."""

    def __init__(self, body: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.one, self.scale, self.body = nn.Linear(16, 16), nn.Parameter(torch.full((16,), 0.5)), body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.one(x), x, self.scale).sum()


def layers(recomputes: Any = no_recomputes) -> LinkedStep:
    return linked_step(in_blocks(seeded(Layers()), (X,), recomputes))


def added(step: LinkedStep) -> list[str]:
    """The operators that run again though the plan does not say so."""
    before, after = planned_recomputes(step.linked), planned_recomputes(with_fused_recomputes(step).linked)
    assert not set(before) - set(after)
    return [
        step.linked.graph.operations[recompute.op].op.split(".")[1] for recompute in after if recompute not in before
    ]


def test_nothing_elementwise_is_kept_but_what_others_read() -> None:
    step = layers()
    linked = with_fused_recomputes(step).linked
    graph, left, remade = linked.graph, set[int](), set[int]()
    for event in linked.backward:
        if isinstance(event, Run | RecomputeRun):
            left |= {graph.root[value] for value in graph.operations[event.op].reads} - remade
            remade.update(value for value in graph.operations[event.op].writes if value is not None)
    assert left
    others = [
        op for op in graph.operations if op.op.endswith(("mm", "norm", "norm_backward")) or op.id.startswith("part")
    ]
    read = {graph.root[value] for op in others for value in op.reads}  # products, norms, and the loss
    by_name = {value for value in left if 0 <= graph.values[value].producer < graph.backward_start}
    assert {v for v in by_name if graph.operations[graph.values[v].producer].op.split(".")[1] in ELEMENTWISE} <= read
    assert simulate(linked).peak < 0.8 * simulate(step.linked).peak


@pytest.mark.quick("everything")
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time, everything])
def test_each_runs_again_in_its_own_block_and_the_plan_as_planned(recomputes: Any) -> None:
    step = layers(recomputes)
    graph = step.linked.graph
    result = with_fused_recomputes(step)
    assert keeps_contract(step.linked, result.linked)
    planned = set(planned_recomputes(step.linked))
    for recompute in set(planned_recomputes(result.linked)) - planned:
        assert step.leaves[graph.operations[recompute.op].id] == step.leaves[graph.operations[recompute.before].id]


@pytest.mark.slow
def test_a_step_is_linked_again_from_its_own_recomputes() -> None:
    for recomputes in (no_recomputes, just_in_time, everything):
        linked = layers(recomputes).linked
        assert link(linked.graph, planned_recomputes(linked)) == linked


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (lambda h, x, scale: torch.tanh(torch.sin(h)), {"sin", "tanh"}),
        (lambda h, x, scale: torch.sin(torch.sin(h * scale)), {"mul", "sin"}),  # gradients read both factors
        (lambda h, x, scale: torch.sin(torch.sin(x * 2) * scale), set()),  # nobody would see that x was written to
        (lambda h, x, scale: torch.sin(nn.functional.dropout(h, 0.5)), set()),
        (lambda h, x, scale: torch.sin(h).t() @ torch.sin(h), set()),  # a product reads it
    ],
)
def test_only_what_is_free_and_watched_runs_again(body: Any, wanted: set[str]) -> None:
    assert set(added(step_of(seeded(Elementwise(body)), X, no_recomputes))) == wanted


def test_what_a_maximum_is_compared_with_does_not() -> None:
    def greatest(h: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.amax(torch.sin(h), 1)

    assert not added(step_of(seeded(Elementwise(greatest)), X, no_recomputes))


def test_what_would_be_delivered_later_does_not_keep_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remate_runtime.link.deliveries.TOGETHER", 1)
    linked = layers().linked
    last = len(linked.graph.operations) - 1
    norms = [at for at, op in enumerate(linked.graph.operations) if op.op == "aten.native_layer_norm"]
    assert not keeps_contract(linked, link(linked.graph, [FlatRecompute(norms[-1], last)]))


@pytest.mark.slow
def test_gradients_are_eagers() -> None:
    eager = seeded(Layers())
    compiled: Any = apply(copy.deepcopy(eager), in_blocks(eager, (X,), just_in_time), engine="compiled")
    results: list[Any] = []
    for model in (compiled, eager):
        loss = model(X)
        loss.backward()
        results.append({"loss": loss.detach()} | {f"gradient {n}": p.grad for n, p in model.named_parameters()})
    assert_close(results[0], results[1])
