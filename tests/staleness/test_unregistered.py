"""Modules and tensors that forward uses and that the model does not register: changes of them after the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remate_runtime import StaleModelError, apply
from tests.runtime.small import data, seeded
from tests.runtime.stepping import schedule_of

ACT: nn.Module = nn.LeakyReLU(0.1)
DROP = nn.Dropout(0.25)
BY_NAME: dict[str, nn.Module] = {"a": nn.LeakyReLU(0.2)}
STACK = nn.Sequential(nn.Tanh(), nn.LeakyReLU(0.3))
ARRAY = np.ones(8, dtype=np.float32)
WEIGHTS = torch.from_numpy(ARRAY)
FROZEN = [nn.Parameter(torch.ones(8), requires_grad=False)]
SCALE = 1.5
X = data(4, 8)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE


class Settings:
    act: nn.Module = nn.ELU(0.5)


class Holder:
    def __init__(self) -> None:
        self.acts = [nn.ELU(0.7)]
        self.average = nn.Linear(8, 8).requires_grad_(False)  # forward does not use it


def closing(act: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: act(x)


class Net(nn.Module):
    shared: nn.Module = nn.CELU(0.5)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.acts = [nn.LeakyReLU(0.15), Scaled()]
        self.teacher = [seeded(nn.Linear(8, 8)).requires_grad_(False)]
        self.holder, self.partial = Holder(), functools.partial(nn.LeakyReLU(0.25))
        self.closed, self.method = closing(nn.LeakyReLU(0.35)), nn.LeakyReLU(0.45).forward
        self.parent = (self,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = STACK(DROP(BY_NAME["a"](ACT(self.a(x)))))
        for act in (*self.acts, *self.holder.acts, self.partial, self.closed, self.method, self.shared, Settings.act):
            x = act(x - 0.1)
        x = self.teacher[0](x) * WEIGHTS * FROZEN[0] + len(self.parent)
        return self.b(x).square().mean()


Change = Callable[[Any, pytest.MonkeyPatch], Any]


def _cell(function: Any) -> Any:
    return function.__closure__[0]


def _hooked(module: nn.Module, hook: Any) -> None:
    module.register_forward_hook(hook)


CHANGES: dict[str, Change] = {
    "global": lambda n, p: p.setitem(globals(), "ACT", nn.GELU()),
    "setting of a global": lambda n, p: p.setattr(ACT, "negative_slope", 0.9),
    "mode of a global": lambda n, p: p.setattr(DROP, "training", False),
    "rate of a global": lambda n, p: p.setattr(DROP, "p", 0.9),
    "item of a global": lambda n, p: p.setitem(BY_NAME, "a", nn.GELU()),
    "child of a global": lambda n, p: p.setitem(STACK._modules, "0", nn.GELU()),
    "setting of a child": lambda n, p: p.setattr(STACK[1], "negative_slope", 0.9),
    "child appended": lambda n, p: p.setitem(STACK._modules, "2", nn.GELU()),
    "in a list": lambda n, p: n.acts.__setitem__(0, nn.GELU()),
    "setting in a list": lambda n, p: setattr(n.acts[0], "negative_slope", 0.9),
    "global of a class in a list": lambda n, p: p.setitem(globals(), "SCALE", 2.5),
    "forward in a list": lambda n, p: setattr(n.acts[0], "forward", torch.sin),
    "hook in a list": lambda n, p: _hooked(n.acts[0], lambda module, args, output: output * 2),
    "in an object": lambda n, p: n.holder.acts.__setitem__(0, nn.ELU(2.0)),
    "partial": lambda n, p: setattr(n, "partial", functools.partial(nn.LeakyReLU(0.9))),
    "closure": lambda n, p: setattr(_cell(n.closed), "cell_contents", nn.LeakyReLU(0.9)),
    "setting in a closure": lambda n, p: setattr(_cell(n.closed).cell_contents, "negative_slope", 0.9),
    "method": lambda n, p: setattr(n, "method", nn.LeakyReLU(0.9).forward),
    "method of a module of the model": lambda n, p: setattr(n, "method", n.a.forward),
    "class": lambda n, p: p.setattr(Net, "shared", nn.GELU()),
    "another class": lambda n, p: p.setattr(Settings, "act", nn.GELU()),
    "weights": lambda n, p: n.teacher[0].weight.mul_(0.5),
    "weights by .data": lambda n, p: n.teacher[0].weight.data.mul_(0.5),
    "weights replaced": lambda n, p: setattr(n.teacher[0], "weight", nn.Parameter(torch.ones(8, 8), False)),
    "array of a tensor": lambda n, p: ARRAY.__setitem__(1, ARRAY[1] + 0.5),
    "parameter in a list": lambda n, p: FROZEN[0].data.add_(0.5),
}
ALLOWED: dict[str, Change] = {
    "mode that nobody reads": lambda n, p: p.setattr(ACT, "training", False),
    "attribute that nobody reads": lambda n, p: setattr(n.acts[0], "note", 1),
    "an equal one": lambda n, p: n.acts.__setitem__(0, nn.LeakyReLU(0.15)),
    "what forward does not use": lambda n, p: n.holder.average.weight.data.mul_(0.5),
    "weights of the model": lambda n, p: n.a.weight.data.mul_(0.5),
    "hook that looks": lambda n, p: _hooked(n.acts[0], lambda module, args, output: None),
}


def scheduled() -> Any:
    """A model after a good step."""
    model = seeded(Net())
    planned = apply(model, schedule_of(model, (X,)))
    planned(X).backward()
    return model, planned


@pytest.mark.quick("item of a global")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name: str) -> None:
    model, planned = scheduled()
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[name](model, patch)
        with pytest.raises(StaleModelError):
            planned(X)


@pytest.mark.quick("an equal one")
@pytest.mark.parametrize("name", ALLOWED)
def test_what_changes_nothing_is_allowed(name: str) -> None:
    model, planned = scheduled()
    with pytest.MonkeyPatch.context() as patch:
        ALLOWED[name](model, patch)
        for _ in range(2):
            planned(X).backward()


def test_the_module_and_what_changed_are_named() -> None:
    model, planned = scheduled()
    model.acts[0] = nn.GELU()
    text = r"module 'acts\[0\]', which the model does not register, was torch.nn.LeakyReLU, is torch.nn.GELU\n  set it"
    with pytest.raises(StaleModelError, match=text):
        planned(X)


@pytest.mark.slow
def test_what_a_replaced_method_reads_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled()  # what the methods of Scaled read before is known now
    monkeypatch.setattr(Scaled, "forward", lambda self, x: x * self.rate)
    monkeypatch.setattr(Scaled, "rate", 1.5, raising=False)
    model = seeded(Net())
    model.acts[1].rate = 1.5
    planned = apply(model, schedule_of(model, (X,)))
    planned(X).backward()
    model.acts[1].rate = 2.5
    with pytest.raises(StaleModelError, match="rate"):
        planned(X)
