"""Forward changes a setting at its first call: whether its next call is the same step is seen by its calls alone where
that can be seen, and by a trace of the whole step where not. A next call that differs is refused in either case."""

from __future__ import annotations

import types
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from remate.capture import capture_step
from remate.capture.capture_step import capture
from remate.errors import CaptureError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Doubled(torch.autograd.Function):
    """Its backward is written in Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * gradients[0]


class Settled(nn.Module):
    """Four blocks, and a head that is told whether a call has been made before."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.one, self.other = nn.Parameter(torch.ones(8)), nn.Parameter(torch.full((8,), 2.0))
        self.config = types.SimpleNamespace(kind=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        again = self.config.kind is not None
        self.config.kind = "known"
        return self.head(x, again).sum()

    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return x * self.one if again or x.dtype is not torch.float64 else x


class OtherNumber(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return x * (2.0 if again else 3.0)


class OtherParameter(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return x * (self.one if again else self.other)


class OtherResult(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        made = x * self.one, x * self.other
        return made[again]


class OtherGradient(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        with torch.set_grad_enabled(again):
            scale = self.one * 2
        return x * scale


class OtherArray(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return x * torch.as_tensor(numpy.full(8, 2.0 if again else 3.0, numpy.float32))


class OtherBuffer(Settled):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(8))

    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        made = x.detach().sum(0), x.detach().mean(0)
        self.state = made[again]
        return x


class OwnFunction(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return Doubled.apply(x)  # type: ignore[no-any-return]


class OtherFunction(Settled):
    def head(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        return Doubled.apply(x) if again else 2 * x  # type: ignore[no-any-return]


def traces(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the whole step was traced."""
    count, usual = 0, capture_step.traced

    def counting(*args: Any) -> Any:
        nonlocal count
        count += 1
        return usual(*args)

    monkeypatch.setattr(capture_step, "traced", counting)
    capture(model, (X,))
    return count


def test_a_next_call_that_asks_the_same_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces(Settled(), monkeypatch) == 1


@pytest.mark.slow
def test_a_backward_in_python_is_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces(OwnFunction(), monkeypatch) == 2


@pytest.mark.quick("OtherBuffer")
@pytest.mark.parametrize(
    "kind",
    [OtherNumber, OtherParameter, OtherResult, OtherGradient, OtherArray, OtherBuffer, OtherFunction],
)
def test_a_next_call_that_differs_is_refused(kind: type[Settled]) -> None:
    with pytest.raises(CaptureError, match="its next call computes something else"):
        capture(kind(), (X,))
