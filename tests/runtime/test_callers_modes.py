"""Dispatch modes of the caller around forward: what backward recomputes runs outside of them, which is said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from remate_runtime import BindError, apply

from .small import Mlp, data, seeded
from .stepping import schedule_of


class Halved(TorchDispatchMode):
    """Halves what linear layers compute."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result / 2 if func is torch.ops.aten.addmm.default else result


def test_a_mode_that_backward_is_outside_of_is_named() -> None:
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    with Halved():
        loss = planned(x).square().mean()
    with pytest.warns(UserWarning, match=r"forward ran within Halved, and backward runs outside"):
        loss.backward()


def test_backward_within_it_computes_what_eager_does() -> None:
    model, eager, x = seeded(Mlp()), seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    with Halved(), warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(x).square().mean().backward()
        eager(x).square().mean().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), eager.parameters(), strict=True))


def test_modes_of_torch_are_not_named() -> None:
    model, x = seeded(Mlp()), data(4, 8)
    planned = apply(model, schedule_of(model, (x,)))
    with FlopCounterMode(display=False):
        loss = planned(x).square().mean()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.backward()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_other_kernels_of_attention_are_refused_after_the_first_call() -> None:
    model, x = Attention(), torch.randn(2, 3, 6, 8)
    planned = apply(model, schedule_of(model, (x,)))
    planned(x).sum().backward()
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(BindError, match=r"first call: .*flash.*; now: math"):
        planned(x)
    others = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(others), pytest.raises(BindError, match=r"first call: .*cuDNN; now: (?!.*cuDNN)"):
        planned(x)
    planned(x).sum().backward()
