"""Self-checks in several threads at once: each runs its own functions, and torch has its own again after the last."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate_runtime import apply
from remate_runtime.self_check.live_forward import discarding
from remate_runtime.self_check.replaced import Function, replaced_here


class Answers:
    @staticmethod
    def fixed() -> str:
        return "own"

    def of(self, word: str) -> str:
        return f"own {word}"


class Ignored:
    def look(self, thing: Any) -> None:
        pass


def louder(function: Function) -> Function:
    return lambda *args: function(*args) + "!"


@pytest.mark.parametrize("name", ["fixed", "of"])
def test_each_thread_runs_its_own(name: str) -> None:
    args = () if name == "fixed" else ("a",)
    before = vars(Answers)[name]
    own = getattr(Answers(), name)(*args)
    inside, left = threading.Barrier(3), threading.Event()

    def ask(times: int) -> list[str]:
        with replaced_here(Answers, name, louder):
            if times == 1:
                inside.wait(10)
                first = getattr(Answers(), name)(*args)
            else:
                with replaced_here(Answers, name, louder):
                    inside.wait(10)
                    left.wait(10)  # the thread that began first may end last
                    first = getattr(Answers(), name)(*args)
            return [first, getattr(Answers(), name)(*args)]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(ask, 1), pool.submit(ask, 2)
        inside.wait(10)
        assert getattr(Answers(), name)(*args) == own  # in this thread
        assert one.result() == [own + "!", own + "!"]
        left.set()
        assert two.result() == [own + "!!", own + "!"]
    assert vars(Answers)[name] is before


def test_an_error_puts_it_back() -> None:
    before = vars(Answers)["of"]
    with pytest.raises(ValueError, match="within"), replaced_here(Answers, "of", louder):
        raise ValueError("within")
    assert vars(Answers)["of"] is before


class Meeting(nn.Module):
    """Its first two calls in threads are in forward at the same time; the one that began first ends first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eval("meet")()  # what the guard does not see
        return self.linear(x).tanh()


def test_overlapping_checks_leave_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4)
    schedule = remate.plan(Meeting(), (x,), budget="100%", cost="cpu", effort="quick", progress=None)
    models = [apply(Meeting(), schedule) for _ in range(2)]
    both, first_ended = threading.Barrier(2), threading.Event()

    def meet() -> None:
        if not first_ended.is_set() and both.wait(10):
            first_ended.wait(10)

    def call(model: nn.Module) -> None:
        model(x).sum().backward()
        first_ended.set()

    register = torch.Tensor.register_hook
    monkeypatch.setitem(globals(), "meet", meet)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, models))
    assert torch.Tensor.register_hook is register
    with discarding(Ignored()):
        pass
    saved = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with ThreadPoolExecutor(1) as pool, saved:
        pool.submit(lambda: torch.randn(2, requires_grad=True).tanh().sum().backward()).result()


def meet() -> None:
    """Replaced by a test."""
