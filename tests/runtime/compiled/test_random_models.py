"""Whatever the model and whatever runs again: gradients of compiled steps are eager's. In float64, where rounding hides
nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from remate.capture.capture_step import capture
from remate_runtime import apply
from remate_runtime.flat_step import FlatRecompute, Graph

from ..small import data, seeded
from ..stepping import planned_outputs, with_recomputes
from .subjects import assert_close


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, 1)
        return torch.cat([left * torch.sigmoid(right), right.clamp(min=-0.5)], 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(0, 1) for part in self.qkv(x).chunk(3, -1))
        return (torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v).transpose(0, 1).flatten(1)


class Stack(nn.Module):
    differentiate = ("*",)

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.scale, self.layers = nn.Parameter(torch.ones(())), nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        return x.square().mean() + x.sin().sum(), x


def flat() -> list[Any]:
    return [
        lambda: nn.Linear(8, 8),
        lambda: nn.LayerNorm(8),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.GELU(),
        lambda: nn.Dropout(0.3),
        lambda: Residual(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
        Gate,
        Attention,
    ]


def spatial() -> list[Any]:
    return [
        lambda: nn.Conv2d(8, 8, 3, padding=1),
        lambda: nn.Conv2d(8, 8, 1, groups=2),
        lambda: nn.BatchNorm2d(8),
        lambda: nn.GroupNorm(2, 8),
        lambda: nn.ReLU(),
        lambda: nn.Dropout(0.3),
        lambda: nn.MaxPool2d(3, 1, 1),
        lambda: Residual(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU()),
        Gate,
    ]


def plans(graph: Graph) -> st.SearchStrategy[list[FlatRecompute]]:
    forward = [at for at in range(graph.backward_start) if not graph.operations[at].view]
    recompute = st.sampled_from(forward).flatmap(
        lambda op: st.builds(FlatRecompute, st.just(op), st.integers(op + 1, len(graph.operations) - 1))
    )
    return st.lists(recompute, max_size=20)


def left_behind(model: nn.Module, x: torch.Tensor, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model.zero_grad()
    x.grad = None
    loss, features = model(x)
    (loss + 0.1 * features.sum()).backward()
    by_name = {
        "loss": loss.detach(),
        "features": features.detach(),
        "generator": torch.get_rng_state(),
        "gradient x": x.grad,
    }
    by_name |= {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}
    return by_name | {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_gradients_are_eagers(draw: st.DataObject) -> None:
    makers, shape = draw.draw(st.sampled_from([(flat(), (6, 8)), (spatial(), (2, 8, 6, 6))]))
    layers = draw.draw(st.lists(st.sampled_from(range(len(makers))), min_size=1, max_size=5))
    model: Any = seeded(Stack([makers[at]() for at in layers])).double()
    x = data(*shape).double().requires_grad_(draw.draw(st.booleans()))
    captured = capture(model, (x,), differentiate=planned_outputs(model))
    recomputes = sorted(draw.draw(plans(captured.graph)), key=lambda recompute: recompute.before)
    compiled = apply(copy.deepcopy(model), with_recomputes(captured, lambda graph: recomputes), engine="compiled")
    for seed in range(2):
        assert_close(left_behind(compiled, x, seed), left_behind(model, x, seed), tolerance=1e-11)
