"""Sizes that are products and sums of other sizes of the step: attention over flattened images, maps of several scales
as one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import remate
import remate_runtime
from remate.dims.composed import products, sums
from remate.dims.fitting import SizeFitter
from remate.errors import DimsError
from remate.profile.costing import MEASURED, costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime.flat_step import expand
from remate_runtime.format import checked_text
from remate_runtime.link import fitted, link, simulate
from remate_runtime.staleness import training_step

pytestmark = pytest.mark.filterwarnings("ignore:.*over its budget")
SIZES = [
    dict(zip("bhw", at, strict=True))
    for at in ((13, 26, 47), (59, 17, 22), (43, 53, 19), (34, 41, 61), (2, 8, 8), (4, 64, 64), (4, 33, 41))
]


def fitter(*parts: Callable[[int, int, int], int]) -> SizeFitter:
    ranges = {"b": range(2, 65), "h": range(8, 65), "w": range(8, 65)}
    return SizeFitter(ranges, SIZES, (2, 3, 4, 8, 16), lambda: [row(part) for part in parts])


def row(number: Callable[[int, int, int], int]) -> tuple[int, ...]:
    return tuple(number(*sizes.values()) for sizes in SIZES)


H4, W4, H8, W8 = (
    lambda b, h, w: h // 4,
    lambda b, h, w: w // 4,
    lambda b, h, w: (h + 7) // 8,
    lambda b, h, w: (w + 7) // 8,
)


@pytest.mark.slow("8*b*(h//4)^2*(w//4)^2")
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("(h//4)^2*(w//4)^2", lambda b, h, w: (h // 4 * (w // 4)) ** 2),
        ("8*b*(h//4)^2*(w//4)^2", lambda b, h, w: 8 * b * (h // 4 * (w // 4)) ** 2),
        ("(h//4)^2*(w//4)^2+2*(h//4)*(w//4)+1", lambda b, h, w: (h // 4 * (w // 4) + 1) ** 2),
        ("(h//4)*(w//4)+((h+7)//8)*((w+7)//8)", lambda b, h, w: h // 4 * (w // 4) + (h + 7) // 8 * ((w + 7) // 8)),
        (
            "(h//4)*(w//4)+((h+7)//8)*((w+7)//8)+b+5",
            lambda b, h, w: h // 4 * (w // 4) + (h + 7) // 8 * ((w + 7) // 8) + b + 5,
        ),
    ],
)
def test_what_is_made_of_sizes_that_tensors_have(text: str, number: Callable[..., int]) -> None:
    parts = [H4, W4, H8, W8, lambda b, h, w: b]
    parts += [lambda b, h, w: h // 4 * (w // 4), lambda b, h, w: h // 4 * (w // 4) + 1]
    parts += [lambda b, h, w: (h + 7) // 8 * ((w + 7) // 8)]
    assert [str(size) for size in fitter(*parts).sizes(row(number))] == [text]
    untold: list[Any] = [*row(number)]
    untold[2] = None  # the stride of a size of 1
    assert text in [str(size) for size in fitter(*parts).expressions(untold)]


def test_what_is_made_of_nothing_known() -> None:
    assert fitter(H4, W4).sizes(row(lambda b, h, w: b * math.isqrt(h * w))) == []
    assert list(products((6, 10, 14), [(2, 3, 4)])) == []
    assert list(products((6, 9, 12), [(2, 3, 4)])) == [(3, ((2, 3, 4),))]
    assert list(products((0, 0, 6), [(2, 3, 4), (0, 1, 3)])) == []
    assert list(sums((6, 10, 14), [])) == []
    assert list(sums((6, 11, 14), [(2, 3, 4), (4, 8, 10)])) == [(0, ((2, 3, 4), (4, 8, 10)))]


class Flattened(nn.Module):
    """Attention over an image as a sequence, at one or several scales, with or without an extra token."""

    def __init__(self, scales: tuple[int, ...] = (4,), token: bool = False) -> None:
        super().__init__()
        self.scales = nn.ModuleList(nn.Conv2d(3, 8, n, n) for n in scales)
        self.token = nn.Parameter(torch.zeros(1, 1, 8)) if token else None
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [conv(x).flatten(2).transpose(1, 2) for conv in self.scales]
        if self.token is not None:
            parts = [self.token.expand(x.shape[0], -1, -1), *parts]
        q, k, v = self.qkv(torch.cat(parts, 1)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (q, k, v))
        return ((q @ k.transpose(2, 3)).softmax(-1) @ v).transpose(1, 2).flatten(2).pow(2).mean()


def image(b: int, h: int, w: int) -> torch.Tensor:
    return torch.randn(b, 3, h, w, generator=torch.Generator().manual_seed(b * h * w))


def trained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.slow("two scales, a token")
@pytest.mark.parametrize(
    "model",
    [Flattened(), Flattened((2, 4), token=True)],
    ids=["one scale", "two scales, a token"],
)
def test_attention_over_a_flattened_image(model: nn.Module) -> None:
    dims = {"x": {0: "b=2..6", 2: "h=16..48", 3: "w=16..48"}}
    schedule = remate.plan(model, (image(4, 40, 32),), budget="100%", cost="cpu", dims=dims)
    text = checked_text(schedule)
    assert b"h//4" in text
    theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
    applied = remate_runtime.apply(ours, schedule)
    for sizes in ((4, 40, 32), (2, 16, 16), (6, 48, 48), (3, 17, 47), (5, 31, 22), (2, 48, 16), (3, 19, 19)):
        x = image(*sizes)
        for left, right in zip(trained(theirs, x), trained(applied, x), strict=True):
            assert torch.equal(left, right), sizes
        written = expand(fitted(schedule, dict(zip("bhw", sizes, strict=True))).schedule)
        exact = simulate(link(costed(written.graph, MEASURED), written.recomputes)).peak
        ours.zero_grad()
        assert peak_bytes(lambda x=x: training_step(applied, (x,), {})) == exact, sizes
        assert exact <= simulate(link(written.graph, written.recomputes)).peak, sizes


@pytest.mark.slow
def test_measured_workspaces_between_the_ends(tmp_path: Path) -> None:
    """Those of attention and convolutions follow no estimate: they were fitted to three sizes, of which the rest is a
    guess."""
    dims = {"x": {0: "b=2..6", 2: "h=8..48", 3: "w=8..48"}}
    torch.manual_seed(0)
    model = Attending()
    schedule = remate.plan(model, (image(4, 40, 32),), budget="100%", profile=tmp_path / "costs.json", dims=dims)
    for sizes in ((4, 40, 32), (2, 8, 8), (6, 48, 48), (2, 48, 8), (6, 8, 8), (3, 17, 39), (2, 8, 48), (5, 30, 21)):
        written = expand(fitted(schedule, dict(zip("bhw", sizes, strict=True))).schedule)
        exact = simulate(link(costed(written.graph, MEASURED), written.recomputes)).peak
        predicted = simulate(link(written.graph, written.recomputes)).peak
        assert exact <= predicted, sizes


class Attending(nn.Module):
    """Attention by one operator, after a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.qkv = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.conv(x).flatten(2).transpose(1, 2)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in parts)
        return functional.scaled_dot_product_attention(q, k, v).pow(2).mean()


class Rooted(nn.Module):
    """A factor of one of the sizes that no expression gives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * math.log(x.shape[2])).pow(2).mean()


def test_the_size_that_cannot_be_left_open_is_named() -> None:
    with pytest.raises(DimsError, match=r"follows from s in no way .*\n  hint: leave s fixed"):
        remate.plan(
            Rooted(),
            (torch.randn(3, 9, 7, 4),),
            budget="100%",
            cost="cpu",
            dims={"x": {0: "b", 1: "t", 2: "s"}},
        )
