"""Numbers and scalar tensors of a step in low precision. A step writes results over arguments where eager PyTorch does
not, and in-place kernels round some scalars differently."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate_runtime import apply

from .small import data


class Scaled(nn.Module):
    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(16, 16, dtype=torch.bfloat16), compute
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("fixed", torch.tensor(1.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, self.layer(x))


COMPUTED: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "number": lambda model, y: y.sin() * 0.7,
    "number on the left": lambda model, y: 0.3 * (0.7 * y.tanh()),
    "quotient": lambda model, y: y.sin() / 0.3 + 0.1,
    "interpolation": lambda model, y: y - torch.lerp(y, y.tanh(), 0.3),
    "parameter": lambda model, y: y.sin() * model.scale,
    "parameter on the left": lambda model, y: model.scale * y.sin(),
    "buffer on the left": lambda model, y: model.fixed * y.sin() + model.fixed,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_scalars_round_as_in_eager(name: str) -> None:
    torch.manual_seed(0)
    eager = Scaled(COMPUTED[name]).train()
    model, x = copy.deepcopy(eager), data(8, 16).bfloat16()
    schedule = remate.plan(model, (x,), budget="100%", effort="quick", cost="cpu", dims="none", progress=None)
    results = [ours(x) for ours in (eager, apply(model, schedule, verify="never"))]
    for result in results:
        result.square().mean().backward()
    assert torch.equal(*results)
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None and theirs.grad is not None:
            assert torch.equal(ours.grad, theirs.grad)
