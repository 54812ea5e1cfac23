"""Models with attributes that change while training."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop, self.alpha = nn.Linear(8, 8), nn.Dropout(0.1), 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.drop(torch.tanh(self.linear(x)))
        return x * (1 - self.alpha) + outputs * self.alpha


class Annealed(nn.Module):
    """Residuals that warm up, dropout that fades, noise on the inputs, a temperature, focal loss with label
    smoothing."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(8, 5)
        self.noise, self.tau, self.gamma = 5.0, 0.7, 2
        self.config = SimpleNamespace(smoothing=0.1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        reach = self.noise / math.sqrt(x.shape[0] * x.shape[1])
        x = x + torch.empty_like(x).uniform_(-reach, reach)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        soft = F.gumbel_softmax(logits, tau=self.tau)
        focal = ((1 - soft) ** self.gamma * soft).mean()
        return F.cross_entropy(logits, target, label_smoothing=self.config.smoothing) + focal


LIVE = ["blocks.*.drop.p", "blocks.*.alpha", "noise", "tau", "gamma", "config.smoothing"]
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 3, 4, 0])


def set_all(model: Any, at: dict[str, float]) -> None:
    """at: a share of each range, by the names of `draws`."""
    for k, block in enumerate(model.blocks):
        block.drop.p, block.alpha = at[f"p{k}"], at["alpha"] + 0.01 * k
    model.noise, model.tau, model.gamma = at["noise"], at["tau"], at["gamma"]
    model.config.smoothing = at["smoothing"]
