"""Random models, each with its captured step and what eager computes in two steps."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from remate.capture.capture_step import capture
from remate.capture.captured import Captured

from .small import data, seeded
from .stepping import step

WIDTH = 6
_LAYERS = ("linear", "shared", "norm", "batch_norm", "dropout", "gate", "chunk", "attend", "in_place", "join", "half")


class Random(nn.Module):
    """Layers in a random order. Each reads the last value or an older one; some are views, in place, or random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = random.Random(seed)
        self.kinds = [dice.choice(_LAYERS) for _ in range(dice.randint(5, 9))]
        self.older = [dice.random() for _ in self.kinds]
        self.shared = nn.Linear(WIDTH, WIDTH)
        built = {"linear": nn.Linear, "norm": nn.LayerNorm, "batch_norm": nn.BatchNorm1d}
        self.own = nn.ModuleList(
            built[kind](WIDTH, WIDTH) if kind == "linear" else built[kind](WIDTH) if kind in built else nn.Dropout(0.3)
            for kind in self.kinds
        )
        frozen = dice.randrange(4 * len(self.kinds))
        if frozen < len(self.kinds):
            self.own[frozen].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = [self.shared(x)]
        for kind, share, layer in zip(self.kinds, self.older, self.own, strict=True):
            last, older = values[-1], values[int(share * len(values))]
            values.append(self._layer(kind, layer, last, older))
        return values[-1].float().pow(2).mean(), values[len(values) // 2]

    def _layer(self, kind: str, layer: nn.Module, last: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
        if kind == "shared":
            return torch.tanh(self.shared(last)) + older
        if kind == "gate":
            return torch.sigmoid(last) * older
        if kind == "chunk":
            left, right = last.chunk(2, 1)
            return torch.cat([right.exp().clamp(max=3.0), torch.relu(left)], 1) - older
        if kind == "attend":
            return torch.softmax(last @ older.t(), 1) @ last
        if kind == "in_place":
            return torch.relu_(last * 1.5) + older
        if kind == "join":
            return torch.cat([last, older], 0).view(2, *last.shape).sum(0)
        if kind == "half":
            return (last.bfloat16() * older.bfloat16()).float()
        return layer(last)


class Case(NamedTuple):
    """A model, an input, the model's captured step, and what eager computes with two seeds."""

    model: nn.Module
    x: torch.Tensor
    captured: Captured
    wanted: list[Any]


@cache
def case_of(seed: int) -> Case:
    model, x = seeded(Random(seed)), data(4, WIDTH)
    captured, eager = capture(model, (x,)), copy.deepcopy(model)
    return Case(model, x, captured, [step(eager, (x,), seed=seed) for seed in range(2)])
