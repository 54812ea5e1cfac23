"""Inputs that are objects with attributes, such as a batch of graphs, are read like records."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import enum
import functools
import types
from typing import Any

import pytest
import torch
from torch import nn

import remate_runtime
from remate.capture.capture_step import CaptureError, capture
from remate_runtime import apply
from remate_runtime.bind import children, is_object

from ..runtime.small import data, seeded
from ..runtime.stepping import schedule_of


class Batch:
    """As torch_geometric's: attributes by name, some of them classes, and it can be called."""

    x: torch.Tensor
    factor: float

    def __init__(self, **attributes: Any) -> None:
        self._kind = Batch
        self.__dict__.update(attributes)

    def __call__(self) -> list[str]:
        return [*self.__dict__]

    def __getattr__(self, name: str) -> Any:
        if name in self.parts[0]:  # an endless recursion in a copy that has no attributes yet
            return self.parts[0][name]
        raise AttributeError(name)

    def __copy__(self) -> Any:
        raise AssertionError

    def scaled(self) -> torch.Tensor:
        return self.x * self.factor


class OtherBatch(Batch):
    pass


class DynamicCache(Batch):
    """Forward changes such objects."""


class Slots:
    __slots__ = ("x",)


class MoreSlots(Batch):
    __slots__ = ("y",)


class Number(int):
    """Has attributes, and a value beside them."""


class Partial(functools.partial):
    pass


@dataclasses.dataclass
class Record:
    x: torch.Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.second(torch.tanh(self.first(batch.scaled()))).sum()


class Writes(Net):
    def forward(self, batch: Any) -> torch.Tensor:
        batch.hidden = self.first(batch.x)
        return self.second(torch.tanh(batch.hidden)).sum()


class ReturnsObject(Net):
    def forward(self, batch: Any) -> Any:
        return Batch(loss=super().forward(batch))


def batch(kind: type = Batch, **more: Any) -> Any:
    return kind(**{"x": data(3, 4), "factor": 2.0, "parts": [{"n": 1}], **more})


def test_steps_with_an_object_are_bitwise_equal() -> None:
    model = seeded(Net())
    schedule = schedule_of(model, (batch(),))
    ours = apply(copy.deepcopy(model), schedule)
    given = batch()
    given.x = given.x + 1
    ours(given).backward()
    model(given).backward()
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.quick("given1")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            batch(factor=3.0),
            r"the input 'batch\.factor' was 2\.0 when planning, now it is 3\.0; it may change if .* live=\['batch\.factor'\]",
        ),
        (batch(parts=[{"n": 2}]), r"the input 'batch\.parts\.0\.n' was 1"),
        (batch(more=1), "must have the fields"),
        (batch(OtherBatch), "was a Batch when planning, now it is"),
    ],
)
def test_another_object_is_refused(given: Any, message: str) -> None:
    model = seeded(Net())
    ours = apply(model, schedule_of(model, (batch(),)))
    with pytest.raises(remate_runtime.BindError, match=message):
        ours(given)


def with_itself() -> Any:
    given = batch()
    given.parts = [{"owner": given}]
    return given


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Net, with_itself(), "input 'batch' is of type Batch"),
        (Net, batch(opaque=object()), r"input 'batch\.opaque' is of type object"),
        (Net, batch(DynamicCache), "input 'batch' is of type DynamicCache\n.*use_cache=False"),
        (Writes, batch(), "forward leaves tensors that have a gradient in its argument 'batch'"),
        (Writes, Record(data(3, 4)), "forward leaves tensors that have a gradient in its argument 'batch'"),
        (ReturnsObject, batch(), "forward returns an object of type Batch, which a file cannot hold"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused(model: type[Net], given: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(seeded(model()), (given,))


def test_which_values_are_objects() -> None:
    for given in (batch(), types.SimpleNamespace(x=1), argparse.Namespace(x=1)):
        assert is_object(given)
        inner = children(given)
        assert inner is not None
        assert inner[0] == "record"
        assert "_kind" not in inner[1]
    kinds = enum.Enum("kinds", ["ONE"])
    others = [
        torch.ones(1),
        nn.Linear(1, 1),
        Batch,
        len,
        batch,
        Slots(),
        kinds.ONE,
        ValueError(),
        types,
        object(),
        "x",
        1,
    ]
    assert not any(map(is_object, [*others, torch.Generator(), [], {}, Record(torch.ones(1))]))
