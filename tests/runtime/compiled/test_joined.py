"""What is joined with others and kept so is read there in backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import apply
from remate_runtime.engine.compiled import segments
from remate_runtime.engine.compiled.joined import with_joined_reads
from remate_runtime.engine.compiled_step import LinkedStep
from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import simulate
from remate_runtime.link.contract import keeps_contract

from ..small import data, seeded
from ..stepping import everything, just_in_time, no_recomputes, schedule_of
from .subjects import assert_close, outcome
from .test_memory import linked_step

X = data(512, 8)
Join = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Skip(nn.Module):
    """A skip connection around the middle, with a concatenation after it. seen: the caller gets the skipped tensor."""

    def __init__(self, join: Join, seen: bool = False) -> None:
        super().__init__()
        self.one, self.two, self.join, self.seen = nn.Linear(8, 32), nn.LazyLinear(96), join, seen
        self.middle = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        with torch.no_grad():
            self(X)

    def forward(self, x: torch.Tensor) -> Any:
        skip = torch.relu(self.one(x))
        result = skip * 2
        for layer in self.middle:
            result = layer(torch.tanh(result))
        wide = self.two(self.join(skip, result))  # with it, most is held when backward begins
        loss = (torch.sigmoid(wide) * torch.tanh(wide)).square().mean()
        return loss, (skip if self.seen else loss * 2)


def behind(skip: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.cat([output, skip], -1)


JOINS: dict[str, Join] = {
    "behind": behind,
    "ahead": lambda skip, made: torch.cat([skip, made], 1),
    "twice": lambda skip, made: torch.cat([skip, made, skip], 1),
    "with nothing": lambda skip, made: torch.cat([torch.zeros(0), skip, made], 1),
    "below": lambda skip, made: torch.cat([made, skip]),
    "part": lambda skip, made: torch.cat([made[:, 3:], skip[:, :5], skip], 1),
}


def step_of(model: nn.Module, recomputes: Any = no_recomputes) -> LinkedStep:
    return linked_step(schedule_of(model, (X,), recomputes=recomputes))


def read_of(graph: Graph) -> set[str]:
    """Names of what operations of backward read, views aside."""
    behind = (op for op in graph.operations[graph.backward_start :] if not op.view)
    return {graph.values[value].name for op in behind for value in op.reads}


@pytest.mark.quick("ahead")
@pytest.mark.parametrize("join", JOINS)
def test_it_is_read_where_it_was_joined(join: str) -> None:
    step = step_of(seeded(Skip(JOINS[join])))
    joined = with_joined_reads(step)
    before, after = read_of(step.linked.graph), read_of(joined.linked.graph)
    assert "model.relu" in before
    assert "model.relu" not in after
    assert simulate(joined.linked).peak < simulate(step.linked).peak
    assert joined.contract == step.contract
    assert keeps_contract(joined.linked, joined.linked)


class Promoting(Skip):
    """Joined, it has another type."""

    def forward(self, x: torch.Tensor) -> Any:
        skip = torch.relu(self.one(x))
        both = torch.cat([skip, torch.ones(512, 4, dtype=torch.float64)], 1)
        return self.two(both.float()).square().mean() + torch.exp(both).sum() * 0, skip.sum()


def only_relu(graph: Graph) -> list[FlatRecompute]:
    (relu,) = (at for at, op in enumerate(graph.operations) if op.op == "aten.relu")
    return [item for item in just_in_time(graph) if item.op == relu]


def only_cat(graph: Graph) -> list[FlatRecompute]:
    (cat,) = (at for at, op in enumerate(graph.operations) if op.op == "aten.cat")
    return [item for item in just_in_time(graph) if item.op == cat]


@pytest.mark.quick("no_recomputes3")
@pytest.mark.parametrize(
    ("model", "recomputes"),
    [
        (lambda: Skip(behind, seen=True), no_recomputes),  # the caller has it
        (lambda: Skip(behind), only_relu),  # it is not kept
        (lambda: Skip(behind), only_cat),  # the whole is not kept
        (lambda: Skip(lambda skip, output: torch.cat([output, skip], 1)[:, :32]), everything),
        (lambda: Skip(lambda skip, output: torch.cat([torch.cat([skip, output], 1), output], 1)), no_recomputes),
        (lambda: Promoting(behind), no_recomputes),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), no_recomputes),
    ],
)
def test_what_is_not_kept_so_stays_as_it_is(model: Callable[[], nn.Module], recomputes: Any) -> None:
    step = step_of(seeded(model()), recomputes)
    assert with_joined_reads(step) is step


@pytest.mark.quick("behind-just_in_time")
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
@pytest.mark.parametrize("join", JOINS)
def test_steps_are_eagers(join: str, recomputes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operator by operator, so that it is to the bit."""
    monkeypatch.setattr(segments, "compiles", lambda graph, op: False)
    model = seeded(Skip(JOINS[join]))
    schedule = schedule_of(model, (X,), recomputes=recomputes)
    planned = apply(copy.deepcopy(model), schedule, engine="compiled")
    assert_close(outcome(planned, X, X * 0.5), outcome(model, X, X * 0.5), tolerance=0.0)
