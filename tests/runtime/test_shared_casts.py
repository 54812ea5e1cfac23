"""Parameters that a step uses several times under autocast: eager PyTorch casts them once, and adds up the gradients of
the cast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import remate
from remate_runtime import apply

from .small import data, seeded

X = data(8, 16)


def cast(cache: bool = True) -> Any:
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=cache)


AROUND: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "autocast": cast,
    "without cache": lambda: cast(False),
}


class Model(nn.Module):
    def __init__(self, uses: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(16, 16), nn.Embedding(8, 16)
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.conv, self.uses = nn.Conv1d(4, 4, 3, padding=1), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.uses(self, x)


def within(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model.layer(model.layer(x))


def in_two_regions(model: Any, x: torch.Tensor) -> torch.Tensor:
    with cast():
        y = model.layer(x)
    with cast():
        return model.layer(y)


def without_cache_within(model: Any, x: torch.Tensor) -> torch.Tensor:
    with cast(False):
        return model.layer(model.layer(x))


def in_full_precision_too(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.layer(model.layer(x))
    with torch.autocast("cpu", enabled=False):
        return model.layer(y.float()) + model.layer.weight.sum()


def without_gradients_first(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        target = model.layer(x)
    return model.layer(model.layer(x)) * target


def blocks(model: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = x + model.block(x)
    return x


def checkpoints(model: Any, x: torch.Tensor) -> Any:
    return checkpoint(model.block, checkpoint(model.block, x, use_reentrant=False), use_reentrant=False)


def cast_by_hand(model: Any, x: torch.Tensor) -> torch.Tensor:
    twice = model.layer.weight.to(torch.bfloat16), model.layer.weight.to(torch.bfloat16)
    return x @ twice[0].float() @ twice[1].float()


USES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "twice": lambda model, x: model.layer(model.layer(x)),
    "siamese": lambda model, x: model.block(x) - model.block(x.flip(0)),
    "convolutions": lambda model, x: model.conv(model.conv(x.view(2, 4, 16))),
    "tied": lambda model, x: F.linear(model.layer(model.table(x.argmax(1) % 8)), model.table.weight),
    "within": within,
    "in two regions": in_two_regions,
    "without cache within": without_cache_within,
    "in full precision, too": in_full_precision_too,
    "without gradients first": without_gradients_first,
    "blocks": blocks,
    "checkpoints": checkpoints,
    "cast by hand": cast_by_hand,
}


@pytest.mark.quick("twice-autocast", "within-none", "siamese-without cache", "cast by hand-autocast")
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("uses", USES)
@pytest.mark.filterwarnings("ignore:forward uses torch.utils.checkpoint")
def test_gradients_of_shared_parameters_are_eagers(uses: str, around: str) -> None:
    eager, model = seeded(Model(USES[uses])).train(), seeded(Model(USES[uses])).train()
    with AROUND[around]():
        schedule = remate.plan(model, (X,), budget="100%", effort="quick", cost="cpu", dims="none", progress=None)
    for ours in (eager, apply(model, schedule, verify="never")):
        with AROUND[around]():
            result = ours(X)
        result.float().square().mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None and theirs.grad is not None:
            assert torch.equal(ours.grad, theirs.grad), name


def test_planning_leaves_autocast_as_it_was() -> None:
    for cache in (True, False):
        with cast(cache):
            remate.plan(Model(within), (X,), budget="100%", effort="quick", cost="cpu", dims="none", progress=None)
            assert torch.is_autocast_cache_enabled() == cache
