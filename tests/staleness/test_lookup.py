"""Changes of how attributes are looked up: methods of torch's classes, properties that hide attributes, builtins,
metaclasses, members of enumerations, functions that choose by type, environment variables."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate_runtime import StaleModelError

VARIABLE = "REMATE_TEST_LOOKUP"
CALL = nn.Module.__call__
GETATTR: Callable[[Any, str], Any] = nn.Module.__getattr__


class Named(type):
    @property
    def rate(cls) -> float:
        return cls.kept

    kept: float


class Rates(metaclass=Named):
    kept = 1.0


class Mode(enum.Enum):
    ONE = 1

    def factor(self) -> float:
        return FACTORS[self]


FACTORS = {Mode.ONE: 1.0}


@functools.singledispatch
def chosen(value: object) -> Any:
    return value


@chosen.register
def _(value: torch.Tensor) -> torch.Tensor:
    return value * 1.0


def tripled(value: torch.Tensor) -> torch.Tensor:
    return value * 3.0


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    mode: Mode = Mode.ONE


class Net(nn.Module):
    gain: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.register_buffer("gain", torch.ones(8))
        self.config, self.factor = Config(), 1.0

    @functools.singledispatchmethod
    def gained(self, value: object) -> Any:
        return value

    @gained.register
    def _(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.gained(torch.tanh(layer(x)))
        x = chosen(x) * self.config.scale * self.factor * float("1.0") * round(1.0) * Rates.rate
        x = x * self.config.mode.factor()
        return (x * float(os.environ.get(VARIABLE, "1"))).mean()


X = torch.randn(4, 8)


def calling(self: Any, *args: Any) -> Any:
    returned = CALL(self, *args)
    return returned * 2 if isinstance(self, nn.Linear) else returned


def doubled(self: Any, name: str) -> Any:
    return GETATTR(self, name) * 2 if name == "gain" else GETATTR(self, name)


def three(self: Any) -> Any:
    return 3.0


class Registered(dict[type, Any]):
    """The functions of a `functools.singledispatch`, as a dict, so that a monkeypatch can put one back."""

    def __init__(self, function: Any) -> None:
        super().__init__(function.registry)
        self._function = function

    def __setitem__(self, kind: type, function: Callable[..., Any]) -> None:
        self._function.register(kind, function)


CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "Module.__call__": lambda n, p: p.setattr(nn.Module, "__call__", calling),
    "Linear._call_impl": lambda n, p: p.setattr(nn.Linear, "_call_impl", lambda self, x: x, raising=False),
    "_call_impl of a module": lambda n, p: p.setattr(n.layers[0], "_call_impl", torch.sin),
    "Module.__getattr__": lambda n, p: p.setattr(nn.Module, "__getattr__", doubled),
    "__getattr__ of the model": lambda n, p: p.setattr(Net, "__getattr__", doubled),
    "__getattribute__ of the model": lambda n, p: p.setattr(
        Net, "__getattribute__", lambda self, name: 3.0 if name == "factor" else object.__getattribute__(self, name)
    ),
    "property over an attribute": lambda n, p: p.setattr(Net, "factor", property(three), raising=False),
    "property over a buffer": lambda n, p: p.setattr(Net, "gain", property(three), raising=False),
    "attribute over a buffer": lambda n, p: p.setattr(Net, "gain", 3.0, raising=False),
    "property over a weight": lambda n, p: p.setattr(nn.Linear, "bias", property(three), raising=False),
    "property over a default": lambda n, p: p.setattr(Config, "scale", property(three)),
    "ModuleList.__iter__": lambda n, p: p.setattr(nn.ModuleList, "__iter__", lambda self: iter([self[1], self[0]])),
    "builtin": lambda n, p: p.setattr(builtins, "round", lambda number: 3.0),
    "global over a builtin": lambda n, p: p.setitem(globals(), "float", lambda text: 3.0),
    "method of an enumeration": lambda n, p: p.setattr(Mode, "factor", three),
    "global that a member reads": lambda n, p: p.setitem(FACTORS, Mode.ONE, 3.0),
    "function for a type": lambda n, p: p.setitem(Registered(chosen), torch.Tensor, tripled),
    "method for a type": lambda n, p: p.setitem(
        Registered(vars(Net)["gained"].dispatcher), torch.Tensor, lambda self, value: value * 3.0
    ),
    "function within one for a type": lambda n, p: p.setattr(
        chosen.registry[torch.Tensor], "__code__", tripled.__code__
    ),
    "attribute over a weight": lambda n, p: p.setitem(vars(n.layers[0]), "weight", torch.zeros(8, 8)),
    "attribute over a module": lambda n, p: p.setitem(vars(n), "layers", [torch.sin]),
    "getter of a metaclass": lambda n, p: p.setattr(Named, "rate", property(three)),
    "property of a metaclass": lambda n, p: p.setattr(Rates, "kept", 3.0),
    "environment": lambda n, p: p.setenv(VARIABLE, "3"),
}


@pytest.fixture(scope="module")
def schedule() -> Any:
    return remate.plan(Net(), (X,), budget="100%", cost="cpu", progress=None)


@pytest.fixture
def scheduled(schedule: Any) -> Any:
    """A scheduled model after one good step."""
    model = Net()
    applied = remate_runtime.apply(model, schedule)
    applied(X).backward()
    return model, applied


@pytest.mark.quick("environment", "Linear._call_impl")
@pytest.mark.parametrize("name", CHANGES)
def test_lookup_is_watched(scheduled: Any, name: str) -> None:
    model, applied = scheduled
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[name](model, patch)
        with pytest.raises(StaleModelError):
            applied(X)
    applied(X).backward()


ALLOWED: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "new method": lambda n, p: p.setattr(Net, "report", three, raising=False),
    "new attribute of a class of torch": lambda n, p: p.setattr(nn.Linear, "_quantized", False, raising=False),
    "new attribute of a module": lambda n, p: p.setitem(vars(n.layers[0]), "note", torch.zeros(8, 8)),
    "attribute that is the weight": lambda n, p: p.setitem(vars(n.layers[0]), "weight", n.layers[0].weight),
    "constructor": lambda n, p: p.setattr(nn.Module, "__init__", three),
    "copyreg": lambda n, p: p.setattr(Config, "__slotnames__", [], raising=False),
    "another variable": lambda n, p: p.setenv(VARIABLE + "_2", "3"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_forward_does_not_look_up_may_change(scheduled: Any, name: str) -> None:
    model, applied = scheduled
    with pytest.MonkeyPatch.context() as patch:
        ALLOWED[name](model, patch)
        for _ in range(2):
            applied(X).backward()


def test_an_attribute_that_was_the_weight_is_watched(scheduled: Any) -> None:
    model, applied = scheduled
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(model.layers[0]), "weight", model.layers[0].weight)
        applied(X).backward()
        patch.setitem(vars(model.layers[0]), "weight", torch.zeros(8, 8))
        with pytest.raises(StaleModelError, match="an attribute hides its registered 'weight'"):
            applied(X)
