"""Ways to replace what functions and methods compute without touching the model: classes of tensors, modes, patches, and
attributes that hide those of a class."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import remate
import remate_runtime
from remate_runtime import BindError, ExecutionError, StaleModelError


class Scale:
    k = 1.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


HELD = Scale()
WEAK: weakref.WeakValueDictionary[str, Scale] = weakref.WeakValueDictionary({"scale": HELD})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scaled = Scale().scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scaled(torch.tanh(self.inner(x))) * WEAK["scale"].k).mean()


X = torch.randn(4, 8)


@pytest.fixture
def scheduled() -> Any:
    """A scheduled model after one good step."""
    applied = remate_runtime.apply(model := Net(), remate.plan(model, (X,), budget="100%", cost="cpu", progress=None))
    applied(X).backward()
    return applied


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = super().__torch_function__(func, types, args, kwargs or {})
        return returned * 2 if func is torch.tanh else returned


class Plain(torch.Tensor):
    """A class of tensors that replaces nothing."""


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        return returned * 2 if func is torch.tanh else returned


class DispatchMode(TorchDispatchMode):
    factor = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        return returned * self.factor if func is torch.ops.aten.tanh.default else returned


def test_a_class_of_tensors_that_replaces_functions_is_refused(scheduled: Any) -> None:
    with pytest.raises(BindError, match="Doubling"):
        scheduled(X.as_subclass(Doubling))
    scheduled(X.as_subclass(Plain)).backward()


@pytest.mark.slow
def test_a_mode_that_replaces_functions_is_refused(scheduled: Any) -> None:
    with FunctionMode(), pytest.raises(ExecutionError, match="FunctionMode"):
        scheduled(X)
    with torch.device("cpu"):  # torch's own mode replaces nothing here
        scheduled(X).backward()


def test_the_first_call_in_a_mode_of_the_users_is_checked(scheduled: Any) -> None:
    with DispatchMode():
        scheduled(X).backward()
    scheduled(X).backward()


def test_a_mode_that_changes_results_is_noticed(scheduled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DispatchMode, "factor", 2)
    with DispatchMode(), pytest.raises(StaleModelError):
        scheduled(X)


def test_a_patched_method_of_tensors_is_noticed(scheduled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.Tensor.__mul__
    monkeypatch.setattr(torch.Tensor, "__mul__", lambda one, other: usual(one, other) + 1)
    with pytest.raises(StaleModelError, match="__mul__"):
        scheduled(X)


def test_an_attribute_that_hides_the_class_is_noticed(scheduled: Any) -> None:
    scheduled.scaled.__self__.k = 2.0
    with pytest.raises(StaleModelError, match="k"):
        scheduled(X)


def test_an_object_in_a_weak_dictionary_is_watched(scheduled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HELD, "k", 2.0, raising=False)
    with pytest.raises(StaleModelError, match="WEAK"):
        scheduled(X)
