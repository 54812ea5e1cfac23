"""Strides that a step is traced with are those that it has when it runs, whatever the layout of what comes in."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import remate
import remate_runtime
from remate.capture.layouts import real_layouts
from remate_runtime.staleness import compare_models
from tests.planner.interpreter import compare

ATEN: Any = torch.ops.aten


def sources() -> Iterator[torch.Tensor]:
    yield torch.rand(4, 6, 5)
    yield torch.rand(4, 5, 6).transpose(1, 2)
    yield torch.rand(4, 6, 5, 8)
    yield torch.rand(4, 6, 5, 8).contiguous(memory_format=torch.channels_last)
    yield torch.rand(4, 5, 6, 8).transpose(1, 2)


def gradients(source: torch.Tensor) -> Iterator[torch.Tensor]:
    yield torch.rand(source.shape)
    yield torch.rand_like(source)
    yield torch.rand(source.shape[::-1]).permute(*reversed(range(source.dim())))


def batch_norm(grad: torch.Tensor, source: torch.Tensor) -> Any:
    six = torch.ones(6)
    return ATEN._native_batch_norm_legit_functional(source, six, six, six, six, True, 0.1, 1e-5)[:3]


def batch_norm_backward(grad: torch.Tensor, source: torch.Tensor) -> Any:
    six = torch.ones(6)
    return ATEN.native_batch_norm_backward(grad, source, six, six, six, six, six, True, 1e-5, [True] * 3)


def layer_norm_backward(grad: torch.Tensor, source: torch.Tensor) -> Any:
    width = source.shape[-1]
    statistics, weight = torch.ones(*source.shape[:-1], 1), torch.ones(width)
    return ATEN.native_layer_norm_backward(
        grad, source, [width], statistics, statistics, weight, weight, [True, True, True]
    )


def group_norm_backward(grad: torch.Tensor, source: torch.Tensor) -> Any:
    statistics, numbers = torch.ones(4, 2), (4, 6, source[0, 0].numel(), 2)
    return ATEN.native_group_norm_backward(
        grad.contiguous(), dense(source), statistics, statistics, torch.ones(6), *numbers, [True] * 3
    )


def dense(source: torch.Tensor) -> torch.Tensor:
    return source if is_channels_last(source) else source.contiguous()


def is_channels_last(source: torch.Tensor) -> bool:
    return source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last)


def volume(source: torch.Tensor) -> torch.Tensor:
    """Five axes, channels last if the source is."""
    images = source.reshape(2, -1, 3, 2, 5)
    return images.contiguous(memory_format=torch.channels_last_3d) if is_channels_last(source) else images


def padded(images: torch.Tensor, axes: int) -> torch.Tensor:
    return torch.zeros(*images.shape[:-axes], *(n + 2 for n in images.shape[-axes:]))


CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "layer_norm_backward": layer_norm_backward,
    "softmax_backward": lambda g, x: ATEN._softmax_backward_data(g, x, 1, torch.float32),
    "log_softmax_backward": lambda g, x: ATEN._log_softmax_backward_data(g, x, 1, torch.float32),
    "angle": lambda g, x: ATEN.angle(torch.complex(g, x)),
    "roll": lambda g, x: ATEN.roll(x, [1], [1]),
    "mse_loss_backward": lambda g, x: ATEN.mse_loss_backward(torch.ones(()), x, g, 1),
    "smooth_l1_loss_backward": lambda g, x: ATEN.smooth_l1_loss_backward(torch.ones(()), x, g, 1, 1.0),
    "huber_loss_backward": lambda g, x: ATEN.huber_loss_backward(torch.ones(()), x, g, 1, 1.0),
    "softplus_backward": lambda g, x: ATEN.softplus_backward(g, x, 1, 20),
    "hardtanh_backward": lambda g, x: ATEN.hardtanh_backward(g, x, 0, 1),
    "hardswish_backward": lambda g, x: ATEN.hardswish_backward(g, x),
    "hardsigmoid_backward": lambda g, x: ATEN.hardsigmoid_backward(g, x),
    "native_dropout_backward": lambda g, x: ATEN.native_dropout_backward(g, x > 0.5, 2.0),
    "elu_backward": lambda g, x: ATEN.elu_backward(g, 1, 1, 1, False, x),
    "threshold_backward": lambda g, x: ATEN.threshold_backward(g, x, 0),
    "leaky_relu_backward": lambda g, x: ATEN.leaky_relu_backward(g, x, 0.1, False),
    "rrelu_backward": lambda g, x: ATEN.rrelu_with_noise_backward(g, x, x, 0.1, 0.3, False, False),
    "prelu_backward": lambda g, x: ATEN._prelu_kernel_backward(g, x[:, :1].expand_as(x), torch.ones(1)),
    "glu_backward": lambda g, x: ATEN.glu_backward(g[:, :3], x, 1),
    "log_sigmoid": lambda g, x: ATEN.log_sigmoid_forward(x),
    "log_sigmoid_backward": lambda g, x: ATEN.log_sigmoid_backward(g[:, :1].expand_as(x), x, x),
    "binary_cross_entropy": lambda g, x: ATEN.binary_cross_entropy(g, x, None, 0),
    "binary_cross_entropy_backward": lambda g, x: ATEN.binary_cross_entropy_backward(g, x, x, None, 0),
    "huber_loss": lambda g, x: ATEN.huber_loss(g[:, :1].expand_as(x), x, 0, 1.0),
    "xlogy": ATEN.xlogy.Tensor,
    "xlog1py": ATEN.special_xlog1py.default,
    "logaddexp": lambda g, x: ATEN.logaddexp(g[:, :1].expand_as(x), x),
    "logaddexp2": lambda g, x: ATEN.logaddexp2(g[:, :1].expand_as(x), x),
    "logical_xor": lambda g, x: ATEN.logical_xor(g[:, :1].expand_as(x), x),
    "ne of bfloat16": lambda g, x: ATEN.ne(g[:, :1].bfloat16().expand_as(x), x.bfloat16()),
    "copysign of integers": lambda g, x: ATEN.copysign(g[:, :1].long().expand_as(x), x.long()),
    "pow of a number": lambda g, x: ATEN.pow(2.0, x),
    "ldexp": lambda g, x: ATEN.ldexp(g[:, :1].expand_as(x), x),
    "ldexp by integers": lambda g, x: ATEN.ldexp(g[:, :1].expand_as(x), x.int()),
    "ldexp of bfloat16": lambda g, x: ATEN.ldexp(g[:, :1].bfloat16().expand_as(x), x.bfloat16()),
    "angle of real numbers": lambda g, x: ATEN.angle(x),
    "soft_margin_loss_backward": lambda g, x: ATEN.soft_margin_loss_backward(g, x, x[:, :1].expand_as(x), 0),
    "heaviside": lambda g, x: ATEN.heaviside(g[:, :1].expand_as(x), x),
    "complex": lambda g, x: ATEN.complex(g[:, :1].expand_as(x), x),
    "polar": lambda g, x: ATEN.polar(g[:, :1].expand_as(x), x),
    "floor_divide": ATEN.floor_divide.default,
    "div_floor": lambda g, x: ATEN.div.Tensor_mode(g, x, rounding_mode="floor"),
    "index_fill": lambda g, x: ATEN.index_fill(x[..., 1:], 1, torch.tensor([0]), 0.0),
    "uniform": lambda g, x: ATEN.uniform(x[:, 1:]),
    "isin": lambda g, x: ATEN.isin(x, g),
    "weight_norm": lambda g, x: ATEN._weight_norm_interface(x, torch.ones(4, *[1] * (x.dim() - 1)), 0),
    "frozen_batch_norm": lambda g, x: ATEN._native_batch_norm_legit_no_training(x, *[torch.ones(6)] * 4, 0.1, 1e-5),
    "group_norm_backward": group_norm_backward,
    "channel_shuffle": lambda g, x: ATEN.native_channel_shuffle(dense(x), 2) if x.dim() == 4 else x,
    "reflection_pad_backward": lambda g, x: ATEN.reflection_pad2d_backward(padded(x, 2), x, [1] * 4),
    "replication_pad_backward": lambda g, x: ATEN.replication_pad2d_backward(padded(x, 2), x, [1] * 4),
    "reflection_pad": lambda g, x: ATEN.reflection_pad3d(volume(x), [1] * 6),
    "replication_pad": lambda g, x: ATEN.replication_pad3d(volume(x), [1] * 6),
    "reflection_pad3d_backward": lambda g, x: ATEN.reflection_pad3d_backward(padded(volume(x), 3), volume(x), [1] * 6),
    "replication_pad3d_backward": lambda g, x: ATEN.replication_pad3d_backward(
        padded(volume(x), 3), volume(x), [1] * 6
    ),
}


@pytest.mark.quick("roll", "angle")
@pytest.mark.parametrize("name", CASES)
def test_fake_results_are_laid_out_as_real_ones(name: str) -> None:
    run = CASES[name]
    for source in sources():
        for grad in gradients(source):
            outputs = run(grad, source)
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with real_layouts(mode), mode:
                traced = run(mode.from_tensor(grad), mode.from_tensor(source))
            pairs = zip(*([t] if isinstance(t, torch.Tensor) else t for t in (outputs, traced)), strict=True)
            for have, want in pairs:
                assert have.stride() == want.stride(), (name, source.stride(), grad.stride())


class Transposed(nn.Module):
    """A norm over a transposed view, then a linear layer: it takes a view of the norm's result, or a copy of it."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)
        return nn.functional.mse_loss(self.linear(y).transpose(1, 2), x.transpose(1, 2))


@pytest.mark.quick("norm4", "norm3")
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.LayerNorm(6), nn.Softmax(1), nn.ELU(), nn.Dropout(0.5)])
def test_norm_of_a_transposed_view(norm: nn.Module) -> None:
    compare(Transposed(norm), (torch.randn(4, 6, 8),))


def odd_axes() -> Iterator[torch.Tensor]:
    """Tensors with an axis of one element that has any stride."""
    for shape in ((1, 4, 6), (2, 1, 6), (1, 6, 2, 3), (2, 3, 1, 4)):
        for order in itertools.permutations(range(len(shape))):
            yield torch.randn(shape).permute(order)


ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.reshape(1, -1, 2, 1),
    "add": lambda x: x + x.contiguous(),
    "div": lambda x: x / 2.0,
    "compare": lambda x: x > 0,
    "clamp": lambda x: x.clamp(0, 1),
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "where": lambda x: torch.where(x > 0, x, x.contiguous()),
    "cat": lambda x: torch.cat([x, x], -1),
    "sort": lambda x: x.sort(-1).values,
    "softmax": lambda x: x.softmax(-1),
    "group_norm": lambda x: nn.functional.group_norm(x, 1),
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "conv": lambda x: nn.functional.conv2d(x, torch.ones(2, x.shape[1], 1, 1)) if x.dim() == 4 else x + 1,
}


@pytest.mark.quick("div")
@pytest.mark.parametrize("name", ODD)
def test_axes_of_one_element_are_laid_out_as_by_real_kernels(name: str) -> None:
    for source in odd_axes():
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with real_layouts(mode), mode:
            traced = ODD[name](mode.from_tensor(source))
        assert traced.stride() == ODD[name](source).stride(), (name, source.shape, source.stride())


ON_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y,
    "clone": lambda x, y: x.clone(),
    "copysign": ATEN.copysign.Tensor,
    "div": lambda x, y: x / y,
    "dropout": lambda x, y: ATEN.native_dropout_backward(x, y > 0, 2.0),
    "elu": lambda x, y: ATEN.elu_backward(x, 1.0, 1.0, 1.0, False, y),
    "gelu": ATEN.gelu_backward,
    "hardtanh": lambda x, y: ATEN.hardtanh_backward(x, y, -1.0, 1.0),
    "leaky_relu": lambda x, y: ATEN.leaky_relu_backward(x, y, 0.1, False),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "maximum": torch.maximum,
    "mish": ATEN.mish_backward,
    "mul": lambda x, y: x * y,
    "relu": lambda x, y: ATEN.threshold_backward(x, y, 0),
    "rsub": lambda x, y: torch.rsub(x, y),
    "sigmoid": ATEN.sigmoid_backward,
    "softmax": lambda x, y: ATEN._softmax_backward_data(x, y, 1, x.dtype),
    "where": lambda x, y: torch.where(y > 0, x, y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_expanded_arguments_leave_the_layout_to_the_others(dtype: torch.dtype) -> None:
    """As the gradient of a sum does."""
    turned = torch.randn(16, 8).to(dtype).t()
    one, row = torch.randn(()).to(dtype).expand(8, 16), torch.randn(16).to(dtype).expand(8, 16)
    for name, function in ON_TWO.items():
        for pair in ((one, turned), (turned, one), (row, turned), (turned, row), (one, row)):
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with real_layouts(mode), mode:
                traced = function(*map(mode.from_tensor, pair))
            assert traced.stride() == function(*pair).stride(), (name, [x.stride() for x in pair])


class Attention(nn.Module):
    """Attention over pixels, as in autoencoders for images: with one image its result looks like channels last, and is
    not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.conv = nn.Linear(8, 8), nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x.flatten(2).transpose(1, 2))
        y = (y.transpose(-1, -2).reshape(x.shape) + x) / 2.0
        return self.conv(nn.functional.silu(self.norm(y)))


@pytest.mark.quick("2")
@pytest.mark.parametrize("batch", [1, 2])
def test_pixels_as_a_sequence(batch: int) -> None:
    compare(Attention(), (torch.randn(batch, 8, 4, 4, requires_grad=True),))


@pytest.mark.parametrize("running", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_statistics_of_batch_norm_have_the_types_of_real_ones(training: bool, weights: Any, running: Any) -> None:
    if running is None and not training:
        return  # there is no such kernel

    def types() -> list[Any]:
        source = torch.ones(4, 6, 5, 8, dtype=torch.bfloat16)
        weight = None if weights is None else torch.ones(6, dtype=weights)
        if running is None:
            result = ATEN._native_batch_norm_legit.no_stats(source, weight, weight, training, 0.1, 1e-5)
        else:
            old = (torch.ones(6, dtype=running), torch.ones(6, dtype=running))
            result = ATEN._native_batch_norm_legit_functional(source, weight, weight, *old, training, 0.1, 1e-5)
        return [(each.dtype, each.shape) for each in result]

    if None not in (weights, running) and weights is not running:
        with pytest.raises(RuntimeError):
            types()
        return
    real = types()
    mode = FakeTensorMode()
    with real_layouts(mode), mode:
        assert types() == real


class Normed(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.first(x))).float().square().mean()


@pytest.mark.quick("{'track_running_stats': False}-False-autocast")
@pytest.mark.parametrize("way", ["autocast", "bf16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}, {"affine": False}], ids=str)
def test_batch_norm_in_half_precision(way: str, training: bool, options: dict[str, Any]) -> None:
    model, x = Normed(**options).train(training), torch.rand(4, 3, 8, 8)
    if way == "bf16":
        model, x = model.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        schedule = remate.plan(model, (x,), budget="100%")
        planned = remate_runtime.apply(model, schedule)
        assert compare_models(model, planned, (x,), {}, steps=2).bitwise


def test_group_norm_of_half_precision_between_weights_in_full() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 4, 3)).train()
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        schedule = remate.plan(model, (x,), budget="100%", cost="cpu", progress=None)
        planned = remate_runtime.apply(copy.deepcopy(model), schedule)
    gradients = []
    for each in (planned, model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = each(x).float().square().mean()
        loss.backward()
        gradients.append([parameter.grad for parameter in each.parameters()])
    assert all(map(torch.equal, *gradients))
