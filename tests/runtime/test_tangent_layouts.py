"""A gradient that arrives in another layout than was planned: a warning where kernels choose by the layout."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime

from .small import data, seeded


class Segmenting(nn.Module):
    def __init__(self, within: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
        self.within = within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return pixels(y) if self.within else y


def pixels(y: torch.Tensor) -> torch.Tensor:
    return y.permute(0, 2, 3, 1).reshape(-1, 5)


def trained(model: Any, within: bool) -> list[torch.Tensor]:
    y = model(data(4, 3, 11, 11))
    nn.functional.cross_entropy(y if within else pixels(y), torch.arange(4 * 11 * 11) % 5).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def planned(within: bool) -> Any:
    model = seeded(Segmenting(within)).train()
    schedule = remate.plan(model, (data(4, 3, 11, 11),), budget="100%", cost="cpu", progress=None)
    return remate_runtime.apply(model, schedule)


def test_a_permuted_gradient_warns_and_the_way_out_is_bitwise() -> None:
    with pytest.warns(UserWarning, match="the gradient of output 'output' arrives in another memory layout"):
        trained(planned(False), False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = trained(planned(True), True)
    assert all(map(torch.equal, ours, trained(seeded(Segmenting(True)).train(), True)))


def test_expanded_gradients_and_others_are_taken_without_a_warning() -> None:
    model = planned(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(data(4, 3, 11, 11)).sum().backward()
        model(data(4, 3, 11, 11)).square().mean().backward()
