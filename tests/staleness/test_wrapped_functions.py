"""A file that was planned with a wrapper of torch around a function is refused for a model without it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import StaleModelError, apply
from tests.runtime.stepping import schedule_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.features(x))


def on_the_class(net: Net, context: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Net, "features", context(Net.features))


def on_the_layer(net: Net, context: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(net.first, "forward", context(net.first.forward))


def on_layers_of_torch(net: Net, context: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Linear, "forward", context(nn.Linear.forward))


@contextlib.contextmanager
def halting() -> Iterator[None]:
    with torch.no_grad():
        yield


CONTEXTS = {
    "no_grad": torch.no_grad(),
    "contextlib": halting(),
    "set_grad_enabled": lambda f: torch.set_grad_enabled(False)(f),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("wrap", [on_the_class, on_the_layer, on_layers_of_torch])
def test_a_context_that_is_gone_is_noticed(
    wrap: Callable[[Net, Any, pytest.MonkeyPatch], None], context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Net(), torch.randn(8, 4)
    with monkeypatch.context() as patch:
        wrap(net, CONTEXTS[context], patch)
        schedule = schedule_of(net, (x,))
        apply(net, schedule)(x)
    with pytest.raises(StaleModelError, match=r"forward|features"):
        apply(net, schedule, verify="never")


@pytest.mark.parametrize("enabled", [True, False])
def test_settings_of_a_context_are_compared(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Net(), torch.randn(8, 4)
    with monkeypatch.context() as patch:
        on_the_class(net, lambda f: torch.set_grad_enabled(True)(f), patch)
        schedule = schedule_of(net, (x,))
    on_the_class(net, lambda f: torch.set_grad_enabled(enabled)(f), monkeypatch)
    if enabled:
        apply(net, schedule)(x)
    else:
        with pytest.raises(StaleModelError, match=r"Net\.features.* changed"):
            apply(net, schedule, verify="never")
