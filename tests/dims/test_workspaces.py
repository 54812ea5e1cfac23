"""Workspaces at sizes that nobody measured: what the file says is not below what the kernel takes there."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import remate
from remate.profile.costing import MEASURED, costed
from remate_runtime.flat_step import expand
from remate_runtime.format import at_size


class Signals(nn.Module):
    """Convolutions of one axis, whose gradients take blocks that no formula of sizes gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(3, 48, 9, padding=4), nn.GELU(), nn.Conv1d(48, 48, 9, padding=4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) ** 2).mean()


@pytest.mark.slow
def test_no_convolution_takes_more_than_its_estimate_between_the_sizes_measured() -> None:
    dims = {"x": {0: "b=2..16", 2: "t=32..256/8"}}
    schedule = remate.plan(
        Signals(), (torch.randn(8, 3, 128),), budget="100%", dims=dims, cache=False, effort="quick", progress=None
    )
    chance = random.Random(5)
    for _ in range(12):
        sizes = {name: chance.randrange(d.min, d.max + 1, d.multiple) for name, d in schedule.model.dims.items()}
        graph = expand(at_size(schedule, sizes)).graph
        for planned, measured in zip(graph.operations, costed(graph, MEASURED).operations, strict=True):
            assert measured.workspace <= planned.workspace, (sizes, planned.op)
