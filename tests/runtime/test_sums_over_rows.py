"""Splits whose operations add up rows."""

from __future__ import annotations

import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format import Schedule, Split

from .small import data


class Products(nn.Module):
    """Its gradients are sums over rows of products that have rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return ((y @ y.t() @ y) ** 2)[:, [1, 0, 3, 2]].square().mean()


def test_a_sum_over_rows_is_not_read_by_row() -> None:
    """Backward adds the two gradients of a factor: one is a sum over the rows of the other factor, the other has rows."""
    plain = remate.plan(Products(), (data(8, 16),), budget="100%", cost="cpu", dims="none", progress=None)
    assert isinstance(plain, Schedule)
    able = [op.id for op in expand(plain).graph.operations if not op.view]
    answers = set[str]()
    for start in range(len(able)):
        for end in range(start + 1, len(able) + 1):
            try:
                expand(replace(plain, statements=(Split(tuple(able[start:end]), 2),), requires=("split",)))
            except ScheduleError as refused:
                answers.add(refused.code)
            else:
                answers.add("split")
    assert answers >= {"R091", "split"}
    assert answers <= {"R090", "R091", "R092", "split"}
