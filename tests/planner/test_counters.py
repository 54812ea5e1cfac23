"""Counters in forward, wherever they are stored: refused if forward computes with the count, otherwise allowed."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remate.errors import CaptureError
from remate_runtime import apply
from tests.runtime.stepping import schedule_of

from . import counted_elsewhere

STATE: Any = None
X = torch.ones(2, 4)


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).sum()


class OfTheClass(Net):
    count: int  # not there at first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).count = getattr(type(self), "count", 0) + 1
        return self.lin(x).sum() * (2.0 if type(self).count > 5 else 1.0)


class OnlyCounted(Net):
    count: int  # not there at first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).count = getattr(type(self), "count", 0) + 1
        return self.lin(x).sum()


class OnlyCountedInAnItem(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STATE[0] += 1
        return self.lin(x).sum()


class OfAnAttribute(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STATE.n += 1
        return self.lin(x).sum() * (2.0 if STATE.n > 5 else 1.0)


class OfAnItem(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STATE[0] += 1
        return self.lin(x).sum() * (2.0 if STATE[0] > 5 else 1.0)


class OfAnotherModule(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counted_elsewhere.count += 1
        return self.lin(x).sum() * (2.0 if counted_elsewhere.count > 5 else 1.0)


class OfAVariable(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STATE.set(STATE.get() + 1)
        return self.lin(x).sum() * (2.0 if STATE.get() > 5 else 1.0)


class OfAnIterator(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).sum() * (2.0 if next(STATE) > 90 else 1.0)


def function() -> None:
    pass


def local() -> Any:
    result = threading.local()
    result.n = 0
    return result


function.n = 0  # type: ignore[attr-defined]
COUNTERS: dict[str, tuple[type[Net], Callable[[], Any]]] = {
    "class": (OfTheClass, lambda: None),
    "function": (OfAnAttribute, lambda: function),
    "namespace": (OfAnAttribute, lambda: types.SimpleNamespace(n=0)),
    "arguments": (OfAnAttribute, lambda: argparse.Namespace(n=0)),
    "slots": (OfAnAttribute, Slotted),
    "thread": (OfAnAttribute, local),
    "module of Python": (OfAnotherModule, lambda: None),
    "context": (OfAVariable, lambda: contextvars.ContextVar("count", default=0)),
    "array of NumPy": (OfAnItem, lambda: np.zeros(1)),
    "array": (OfAnItem, lambda: array.array("d", [0.0])),
    "UserList": (OfAnItem, lambda: collections.UserList([0])),
    "iterator of a list": (OfAnIterator, lambda: iter(list(range(99)))),
    "generator": (OfAnIterator, lambda: (each for each in range(99))),
}


@pytest.fixture(autouse=True)
def afresh() -> Any:
    yield
    function.n = counted_elsewhere.count = 0  # type: ignore[attr-defined]
    for kind in (OfTheClass, OnlyCounted):
        if "count" in vars(kind):
            delattr(kind, "count")


@pytest.mark.quick("UserList", "iterator of a list")
@pytest.mark.parametrize("counter", COUNTERS)
def test_a_count_that_is_computed_with_is_refused(counter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, make = COUNTERS[counter]
    monkeypatch.setitem(globals(), "STATE", make())
    with pytest.raises(CaptureError, match="forward changes what it computes with"):
        schedule_of(kind(), (X,))


@pytest.mark.parametrize(
    ("kind", "state"), [(OnlyCounted, None), (OnlyCountedInAnItem, [0]), (OnlyCountedInAnItem, {0: 0})]
)
def test_a_count_that_is_not_is_allowed(kind: type[Net], state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STATE", state)
    model = kind()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = schedule_of(model, (X,))
    assert "count" not in vars(kind)
    model(X)
    planned = apply(model, schedule)
    planned(X)
    model(X)
    planned(X)
