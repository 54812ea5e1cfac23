"""Estimated workspaces are upper bounds: no operation on this machine takes more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import capture
from remate.profile.measured import generators_kept, measure
from remate.profile.signature import signature
from remate.profile.workspace import workspace
from remate_runtime.flat_step import Graph, Op
from tests.models import SMALLEST, ZOO

CPU = torch.device("cpu")
# The operators of other models are among those of these.
MODELS = ("resnet", "tiny_gpt", "mlp_mixer", "moe", "state_space", "gru")


def captured(name: str) -> Graph:
    return capture(*ZOO[name].build(**SMALLEST[name])).graph


def underestimated(graph: Graph) -> Iterator[tuple[str, int, int]]:
    """(operation, measured, estimated) of those that take more, among the distinct ones that run on made-up data."""
    distinct: dict[str, Op] = {signature(graph, op): op for op in graph.operations if not op.view}
    with generators_kept(CPU):
        for key, op in distinct.items():
            result, estimated = measure(graph, op, CPU), workspace(graph, op, "cpu")
            if result.workspace > estimated:
                yield key, result.workspace, estimated


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_zoo(name: str) -> None:
    assert list(underestimated(captured(name))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "two_tower", "depthwise", "fourier"])
def test_zoo_in_low_precision(name: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        graph = captured(name)
    assert list(underestimated(graph)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3])
def test_products_in_low_precision(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        height, depth, width = (draw.choice([1, 3, 16, 33, 64, 97, 200, 256, 511, 700]) for _ in range(3))
        given = torch.randn(depth, height, dtype=torch.bfloat16).t() if draw.random() < 0.5 else None
        given = torch.randn(height, depth, dtype=torch.bfloat16) if given is None else given
        layer = nn.Linear(depth, width, bias=draw.random() < 0.5, dtype=torch.bfloat16)
        assert list(underestimated(capture(layer, (given.requires_grad_(),)).graph)) == []


def mixed(self: Any, x: torch.Tensor, low: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    x = torch.where(x > low, x * low, x - low) + counts
    return torch.maximum(x / (counts + 1), low) * (x < counts) + x.pow(low)


def test_arguments_of_several_types() -> None:
    model = type("Mixing", (nn.Module,), {"forward": mixed})()
    args = torch.rand(40, 50).requires_grad_(), torch.rand(40, 50, dtype=torch.bfloat16), torch.ones(40, 50).long()
    assert list(underestimated(capture(model, args).graph)) == []


def convolution(draw: random.Random) -> tuple[nn.Module, torch.Tensor]:
    """Any: of one to three dimensions, depthwise, grouped or dense, of any layout."""
    dims = draw.choice([1, 2, 2, 2, 3])
    inside = draw.choice([3, 8, 16, 24, 32, 64, 96])
    depthwise = draw.random() < 0.4
    groups = inside if depthwise else draw.choice([1, 1, 1, 2]) if inside % 2 == 0 else 1
    outside = inside * draw.choice([1, 1, 2]) if depthwise else draw.choice([8, 16, 32, 40, 64])
    kernel, dilation = draw.choice([1, 2, 3, 5, 7]), draw.choice([1, 1, 1, 2])
    usual, transposed = (nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    kind: Any = (transposed if draw.random() < 0.2 else usual)[dims - 1]
    layer = kind(
        inside, outside, kernel, stride=draw.choice([1, 1, 2]), padding=kernel // 2, groups=groups, dilation=dilation
    )
    size = [draw.choice([4, 7, 8]) if dims == 3 else draw.choice([4, 7, 8, 16, 28, 32]) for _ in range(dims)]
    images = torch.randn(draw.choice([1, 2, 4, 8]), inside, *size).requires_grad_(draw.random() < 0.5)
    if dims == 2 and draw.random() < 0.3:
        images = images.detach().contiguous(memory_format=torch.channels_last)
    return layer, images


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_convolutions(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        layer, images = convolution(draw)
        assert list(underestimated(capture(nn.Sequential(layer, nn.Tanh()), (images,)).graph)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_convolutions_in_low_precision(seed: int) -> None:
    """By oneDNN, and by PyTorch's own kernels, which run on processors without instructions for it."""
    draw, enabled = random.Random(seed), torch._C._get_mkldnn_enabled()
    for _ in range(6):
        layer, images = convolution(draw)
        step = capture(nn.Sequential(layer, nn.Tanh()).to(torch.bfloat16), (images.detach().to(torch.bfloat16),))
        try:
            for flag in (enabled, False):
                torch._C._set_mkldnn_enabled(flag)
                assert list(underestimated(step.graph)) == []
        finally:
            torch._C._set_mkldnn_enabled(enabled)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_layers(dtype: torch.dtype) -> None:
    draw = random.Random(0)
    for _ in range(2):
        width, hidden = (draw.choice([1, 16, 60, 64, 100, 256, 257]) for _ in range(2))
        layer = nn.LSTM(width, hidden, bias=draw.random() < 0.7, bidirectional=draw.random() < 0.3).to(dtype)
        x = torch.randn(draw.choice([1, 2, 7, 33]), draw.choice([1, 5, 31, 130]), width, dtype=dtype)
        assert list(underestimated(capture(layer, (x,)).graph)) == []


@pytest.mark.quick("dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_layers_take_about_what_is_said(dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN runs no layers in bfloat16 on this processor")
    graph = capture(nn.LSTM(64, 96).to(dtype), (torch.randn(24, 16, 64, dtype=dtype),)).graph
    layers = [op for op in graph.operations if "rnn" in op.op]
    assert len(layers) == 2
    for op in layers:
        taken = measure(graph, op, CPU).workspace
        assert taken <= workspace(graph, op, "cpu") <= 1.1 * taken + 4096


class Attending(nn.Module):
    """Attention in one kernel, of tensors that lie in memory in any order."""

    def __init__(self, order: tuple[int, ...], behind: tuple[int, ...]) -> None:
        super().__init__()
        self.order, self.behind = order, behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        back = [self.order.index(axis) for axis in range(4)]
        lying = x.permute(self.order).contiguous().permute(back)
        tensor = nn.functional.scaled_dot_product_attention(lying, lying.exp(), lying.sin())
        return tensor.permute(self.behind).contiguous().square().mean()


@pytest.mark.quick("behind2-order1")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("behind", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
def test_attention(order: tuple[int, ...], behind: tuple[int, ...]) -> None:
    """The backward kernel copies a gradient that does not lie as it wants it."""
    for batch, heads, length in ((2, 4, 24), (3, 1, 40), (1, 2, 200)):
        x = torch.randn(batch, heads, length, 8, requires_grad=True)
        assert list(underestimated(capture(Attending(order, behind), (x,)).graph)) == []


class Windows(nn.Module):
    def __init__(self, axis: int, size: int, step: int) -> None:
        super().__init__()
        self.axis, self.size, self.step = axis, size, step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(self.axis, self.size, self.step).sin().sum()


@pytest.mark.parametrize(("axis", "size", "step"), [(0, 9, 8), (1, 3, 2), (-1, 5, 5), (-2, 4, 7)])
def test_windows(axis: int, size: int, step: int) -> None:
    """The gradient of overlapping windows has an index of their elements."""
    given = torch.randn(50, 41, requires_grad=True)
    assert list(underestimated(capture(Windows(axis, size, step), (given,)).graph)) == []
