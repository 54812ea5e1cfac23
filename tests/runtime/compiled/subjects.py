"""A small model with everything that a compiled step must respect, and the results of its steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from remate_runtime.flat_step import FlatRecompute, Graph

from ..small import data, seeded
from ..stepping import just_in_time


class Block(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(p) if p else nn.Identity()
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.drop(torch.tanh(self.wide(self.norm(x)))))


class Mixed(nn.Module):
    """Equal blocks, dropout, statistics, a tied weight, two outputs, and two parameters with the same gradient. p: of
    dropout in the blocks."""

    differentiate = ("*",)

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.drop, self.blocks = nn.Dropout(0.3), nn.ModuleList(Block(p) for _ in range(3))
        self.norm, self.tied = nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False)
        self.one, self.two = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.drop(self.tied(x))
        for block in self.blocks:
            x = block(x)
        x = (self.norm(x) + self.one) + self.two
        return self.tied(x).square().mean(), x


def mixed() -> tuple[Any, torch.Tensor]:
    return seeded(Mixed()), data(64, 8)


def cheap(graph: Graph) -> list[FlatRecompute]:
    """Norms, activations and dropout run again just before what needs them."""
    named = ("native_layer_norm", "tanh", "native_dropout")
    return [recompute for recompute in just_in_time(graph) if graph.operations[recompute.op].op.split(".")[1] in named]


def outcome(model: Any, *batches: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor | None]:
    """Run a step on each batch. Return outputs, gradients, buffers and the generator's state."""
    torch.manual_seed(seed)
    model.zero_grad()
    by_name: dict[str, Any] = {}
    outputs = [model(batch) for batch in batches]
    for at, (loss, features) in enumerate(outputs):
        by_name[f"loss {at}"], by_name[f"features {at}"] = loss.detach().clone(), features
    torch.stack([loss + 0.1 * features.sum() for loss, features in outputs]).sum().backward()
    by_name |= {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}
    by_name |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    by_name["generator"] = torch.get_rng_state()
    return {name: None if value is None else value.detach().clone() for name, value in by_name.items()}


def assert_close(by_name: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Relative to the largest element of the gradients; what is no floating point must be equal."""
    scale = max(float(v.abs().max()) for n, v in wanted.items() if n.startswith("gradient") and v is not None)
    assert by_name.keys() == wanted.keys()
    for name, want in wanted.items():
        have = by_name[name]
        assert (have is None) == (want is None), name
        if want is not None and want.is_floating_point():
            largest = max(scale, float(want.abs().max()))
            assert float((have.double() - want.double()).abs().max()) <= tolerance * largest, name
        elif want is not None:
            assert torch.equal(have, want), name


def in_double(model: Any) -> Any:
    return copy.deepcopy(model).double()
