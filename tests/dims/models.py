"""Small models whose step depends on sizes in ways that are easy to get wrong."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """As many heads as batches may have, positions, a causal mask, and a loss that divides by sizes."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(32, 16), nn.Embedding(rows, 16)
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        b, t = tokens.shape
        x = self.embed(tokens) + self.positions(torch.arange(t))
        q, k, v = (part.view(b, t, 4, 4).transpose(1, 2) for part in self.qkv(self.norm(x)).split(16, -1))
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        scores = (q @ k.transpose(2, 3) / 2).masked_fill(~mask, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, 16))
        return x.tanh().pow(2).sum() / (b * t) + x.mean()


class Padded(nn.Module):
    """Sequences padded to a multiple of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y = functional.pad(y, (0, 0, 0, -y.shape[1] % 8))
        return y.view(y.shape[0], -1, 8, 16).mean(2).pow(2).sum() / y.numel()


class Branches(nn.Module):
    """A different step for short sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if x.shape[1] > 20:
            y = y.relu()
        return y.pow(2).mean()


class Every(nn.Module):
    """A different step for one length in `every`."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.linear, self.every = nn.Linear(4, 16), every

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if x.size(1) % self.every == 0:
            y = y.relu()
        return y.pow(2).mean()


class Logarithm(nn.Module):
    """A factor that no expression gives, of the sequence length."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * math.log(x.shape[1])).pow(2).mean()


class OfBatch(Logarithm):
    """A factor that no expression gives, of the batch size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.transpose(0, 1))


class Loop(nn.Module):
    """A recurrence in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, 0]
        for step in range(1, x.shape[1]):
            h = torch.tanh(self.linear(h) + x[:, step])
        return h.pow(2).mean()


class Numbers(nn.Module):
    """A tensor created from Python numbers that depend on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * torch.tensor([float(x.shape[1]), 1.0, 2.0, 3.0])).pow(2).mean()


class Convolutions(nn.Module):
    """Strides, pools, batch norm: images of any height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.head((y + self.second(y).relu()).mean((2, 3))).pow(2).mean()
