"""Small models, each for one behaviour of the runtime."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn


@dataclasses.dataclass
class Answer:
    loss: torch.Tensor
    logits: torch.Tensor
    extra: Any = None


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def seeded(model: nn.Module) -> Any:
    """The same weights on every call, without touching the ambient generator."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def data(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Mlp(nn.Module):
    """Returns its features: the loss is made outside."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 32), nn.Dropout(p), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(torch.tanh(self.a(x))))


class Layers(nn.Module):
    """Residual layers and a loss: activations are most of what its step holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * 1.5 + x
        return x.pow(2).mean()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(ids)))


class Answering(nn.Module):
    """Nested inputs and outputs, optional arguments, a constant, a plain tensor attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.scale = nn.Linear(8, 4), torch.full((4,), 0.5)
        self.config = {"width": 8}

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, labels: Any = None, scale: float = 1.0
    ) -> Answer:
        logits = self.lin(x) * self.scale * scale + torch.tensor([0.0, 1.0, 2.0, 3.0])
        if mask is not None:
            logits = logits.masked_fill(mask, -1e4)
        target = logits if labels is None else logits - labels["y"]
        return Answer(loss=target.pow(2).mean(), logits=logits, extra=(logits.sum(), {"n": 3}))

    def describe(self) -> str:
        return f"width {self.config['width']}, {'train' if self.training else 'eval'}"


class TwoHeads(nn.Module):
    """Two differentiable outputs, one of them shared by both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Pair:
        body = torch.tanh(self.body(x))
        return Pair(self.left(body), self.right(body))
