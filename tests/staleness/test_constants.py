"""Tensors, and other things that a step holds as they were, outside the modules: one that changes is never missed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import BindError, StaleModelError, apply
from tests.runtime.small import data, seeded
from tests.runtime.stepping import assert_same, schedule_of, step

TABLE = torch.linspace(0.5, 1, 8)
SWITCHES = {"double": False}
FACTORS = [2.0, torch.linspace(1, 2, 8)]
X = data(4, 8)


def held_by_a_closure(table: torch.Tensor, names: list[float]) -> Callable[[Any], Any]:
    return lambda y: y * table * names[0]


class Reading(nn.Module):
    weights = torch.linspace(1, 3, 8)

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.masks = {"causal": torch.linspace(0, 1, 8)}
        self.config = SimpleNamespace(shift=torch.linspace(0, 2, 8))
        self.table, self.names = torch.linspace(1, 2, 8), [1.5]
        self.scale = held_by_a_closure(torch.linspace(1, 4, 8), self.names)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scale(self.lin(x * TABLE * self.masks["causal"]) + self.config.shift) * self.weights * self.table
        return (y.sin() * FACTORS[1] * (2 if SWITCHES["double"] else 1)).sum()


def closure(model: Any) -> Any:
    return dict(zip(model.scale.__code__.co_freevars, model.scale.__closure__, strict=True))


def replace_cell(model: Any) -> None:
    closure(model)["table"].cell_contents = torch.zeros(8)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "global": lambda model: TABLE.mul_(2),
    "entry of a global dict": lambda model: SWITCHES.update(double=True),
    "tensor in a global list": lambda model: FACTORS[1].add_(1),
    "tensor of the class": lambda model: Reading.weights.neg_(),
    "tensor in a dict": lambda model: model.masks["causal"].add_(1),
    "another tensor in a dict": lambda model: model.masks.update(causal=torch.zeros(8)),
    "tensor of a config": lambda model: model.config.shift.mul_(3),
    "tensor of a closure": lambda model: closure(model)["table"].cell_contents.mul_(3),
    "another tensor of a closure": replace_cell,
    "list of a closure": lambda model: model.names.append(3.0),
}


@pytest.fixture(autouse=True)
def restored() -> Any:
    kept = TABLE.clone(), FACTORS[1].clone(), Reading.weights.clone()
    yield
    TABLE.copy_(kept[0])
    FACTORS[1].copy_(kept[1])
    Reading.weights.copy_(kept[2])
    SWITCHES["double"] = False


@pytest.mark.quick("tensor in a dict")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_refused_at_the_next_call_and_when_applied(change: Callable[[Any], Any]) -> None:
    model = seeded(Reading())
    schedule = schedule_of(model, (X,))
    planned = apply(model, schedule)
    planned(X).backward()
    change(model)
    with pytest.raises(StaleModelError, match=r"was .*, is .*\n"):
        planned(X)
    with pytest.raises((StaleModelError, BindError), match="is not what the schedule was planned for"):
        apply(model, schedule)


def test_tensor_attributes_are_read_at_every_call_as_ever() -> None:
    model, eager = seeded(Reading()), seeded(Reading())
    planned = apply(model, schedule_of(model, (X,)))
    for each in (model, eager):
        each.table.mul_(2)
        each.table = each.table + 1
    assert_same(step(planned, (X,)), step(eager, (X,)))


def test_what_says_the_same_is_the_same() -> None:
    model, eager = seeded(Reading()), seeded(Reading())
    planned = apply(model, schedule_of(model, (X,)))
    model.masks["causal"] = model.masks["causal"].clone()
    TABLE.add_(0)
    assert_same(step(planned, (X,)), step(eager, (X,)))
