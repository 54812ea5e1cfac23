"""Records that a model returns are restored as their class, or refused while planning."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from remate.capture.capture_step import CaptureError, capture
from remate_runtime import apply

from ..runtime.small import data, seeded
from ..runtime.stepping import schedule_of

Top = namedtuple("Top", ["a", "b"])
Other = namedtuple("Renamed", ["a", "b"])


class Typed(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@dataclasses.dataclass
class Computed:
    """Its constructor does not accept all its fields."""

    a: torch.Tensor
    b: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.b = self.a * 2


@dataclasses.dataclass(init=False, slots=True)
class Plain:
    a: torch.Tensor
    b: torch.Tensor

    def __init__(self, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.a, self.b = pair


class Model(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 4), make

    @dataclasses.dataclass
    class Inner:
        a: torch.Tensor
        b: torch.Tensor

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        return self.make(y, y * 2)


def enclosing() -> nn.Module:
    Local = namedtuple("Local", ["a", "b"])

    class Enclosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = torch.tanh(self.layer(x))
            return {"nested": [Local(y, y * 2)]}

    return Enclosing()


def attribute() -> nn.Module:
    @dataclasses.dataclass
    class Held:
        a: torch.Tensor
        b: torch.Tensor

    return Model(Held)


FOUND = {
    "at the top level": lambda: Model(Top),
    "under another name": lambda: Model(Other),
    "a typed tuple": lambda: Model(Typed),
    "with a field that is computed": lambda: Model(lambda a, b: Computed(a)),
    "with a constructor of its own": lambda: Model(lambda a, b: Plain((a, b))),
    "in a class": lambda: Model(Model.Inner),
    "in the function that defines the model": enclosing,
    "in an attribute": attribute,
}


@pytest.mark.slow("a typed tuple", "at the top level", "under another name")
@pytest.mark.parametrize("kind", FOUND)
def test_the_very_class_comes_back(kind):
    model, x = seeded(FOUND[kind]()), data(3, 4)
    theirs, ours = model(x), apply(model, schedule_of(model, (x,)))(x)
    if isinstance(theirs, dict):
        theirs, ours = theirs["nested"][0], ours["nested"][0]
    assert type(ours) is type(theirs)
    names = getattr(theirs, "_fields", None) or [field.name for field in dataclasses.fields(theirs)]
    for name in names:
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    if isinstance(theirs, tuple):
        left, right = ours
        assert torch.equal(left, theirs[0])
        assert torch.equal(right, theirs[1])


def made_anew(a, b):
    return namedtuple("Local", ["a", "b"])(a, b)


def shadowed(a, b):
    return namedtuple("Top", ["a", "b"])(a, b)


@pytest.mark.parametrize("make", [made_anew, shadowed, lambda a, b: [a, {"record": made_anew(a, b)}]])
def test_a_class_that_is_made_at_each_call_is_refused(make):
    with pytest.raises(CaptureError, match=r"a record of the class '(Local|Top)', which a schedule does not find"):
        capture(seeded(Model(make)), (data(3, 4),))
