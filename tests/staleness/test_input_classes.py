"""Classes of inputs are part of the model's code: forward may call their methods, and read their attributes."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import nn

from remate_runtime import StaleModelError, apply
from remate_runtime.staleness import input_classes
from remate_runtime.staleness.classes_of_inputs import loaded_class

from ..runtime.small import data, seeded
from ..runtime.stepping import schedule_of


class Base:
    offset = 1.0

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.offset


class Plain(Base):
    rate = 2.0
    unused = 0

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def scaled(self) -> torch.Tensor:
        return self.moved(self.x) * 3


@dataclasses.dataclass
class Record(Base):
    x: torch.Tensor
    flag: bool = True
    rate: ClassVar[float] = 2.0
    unused: ClassVar[int] = 0

    def scaled(self) -> torch.Tensor:
        return self.moved(self.x) * 3


class Named(NamedTuple):
    x: torch.Tensor
    rate: float = 2.0

    def scaled(self) -> torch.Tensor:
        return self.x * 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, batches: list[Any]) -> torch.Tensor:
        return self.second(torch.tanh(self.first(batches[0].scaled()))).sum() * batches[0].rate


def example(kind: Any) -> list[Any]:
    return [kind(data(3, 4))]


def planned(kind: Any) -> tuple[Any, Any]:
    model = seeded(Net())
    return model, schedule_of(model, (example(kind),))


Change = Callable[[Any, pytest.MonkeyPatch], None]
CHANGES: dict[str, Change] = {
    "method": lambda kind, patch: patch.setattr(kind, "scaled", lambda self: self.x * 5),
    "method of a base": lambda kind, patch: patch.setattr(Base, "moved", lambda self, x: x * 5),
    "constant that a method reads": lambda kind, patch: patch.setattr(Base, "offset", 5.0),
    "constant that forward reads": lambda kind, patch: patch.setattr(kind, "rate", 5.0),
}


@pytest.mark.quick("method-Plain-late")
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("kind", [Plain, Record])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_class_is_noticed(kind: Any, change: Change, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, schedule = planned(kind)
    ours = apply(model, schedule) if late else None
    if ours is not None:
        ours(example(kind)).backward()
    change(kind, monkeypatch)
    with pytest.raises(StaleModelError):
        (apply(model, schedule) if ours is None else ours)(example(kind))


def test_a_change_of_a_named_tuple_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, schedule = planned(Named)
    monkeypatch.setattr(Named, "scaled", lambda self: self.x * 5)
    with pytest.raises(StaleModelError):
        apply(model, schedule)(example(Named))


@pytest.mark.quick("<lambda>1-Record")
@pytest.mark.parametrize("kind", [Plain, Record])
@pytest.mark.parametrize(
    "change",
    [
        lambda kind, patch: patch.setattr(kind, "unused", 5),
        lambda kind, patch: patch.setattr(Record, "flag", False),  # a default, and the input has a value
    ],
)
def test_what_forward_does_not_read_may_change(kind: Any, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    model, schedule = planned(kind)
    given = example(kind)
    ours = apply(model, schedule)
    change(kind, monkeypatch)
    ours(given).backward()


def test_which_classes_count() -> None:
    class Local(Plain):
        pass

    given = {"a": [Plain(torch.ones(1)), Record(torch.ones(1))], "b": (Named(torch.ones(1)), Local(torch.ones(1)))}
    names = [name.rpartition(".")[2] for name in input_classes((given, types.SimpleNamespace(x=1), {1: 2}))]
    assert names == ["Named", "Plain", "Record"]


def test_a_class_is_known_in_a_module_of_another_name() -> None:
    (name,) = input_classes(Plain(torch.ones(1)))
    assert loaded_class(name, Net()) is Plain
    assert loaded_class("another.place.Plain", Net()) is Plain  # in the module of the model's class
    assert loaded_class("another.place.Missing", Net()) is None


def test_steps_with_an_unchanged_named_tuple_are_accepted() -> None:
    model, schedule = planned(Named)
    ours = apply(model, schedule)
    for _ in range(2):
        ours(example(Named)).backward()
