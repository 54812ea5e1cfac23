"""Kernels of several loops over the same rows: Inductor mixed up rows where it took several at once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import remate
from remate_runtime import apply

from ..small import data, seeded
from ..stepping import assert_same, step


class Gram(nn.Module):
    """Its gradient is a softmax's backward of a sum whose parts have different memory layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.linear(x)
        c = a.softmax(1) * a
        return torch.bmm(c[None], c[None].transpose(1, 2)) @ c


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_each_row_keeps_its_own_results(dtype: torch.dtype) -> None:
    model, x = seeded(Gram()).to(dtype), data(8, 16).to(dtype)
    schedule = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
    planned = apply(copy.deepcopy(model), schedule, engine="compiled")
    assert_same(step(planned, (x,)), step(model, (x,)), 1e-5 if dtype == torch.float32 else 1e-12)
