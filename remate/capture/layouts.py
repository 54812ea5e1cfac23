"""While tracing: results have the strides and sizes that real kernels give them, where fake kernels claim others or refuse.

A view of a result is valid for one of the two only, so a step traced with the wrong strides would fail when it runs. Like
`torch_api`, this module touches unstable interfaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

from remate_runtime.kernels import RESULTS

_ATEN: Any = torch.ops.aten


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _suggested(tensor: torch.Tensor) -> torch.Tensor:
    """Channels last if the tensor is, else contiguous: what most kernels for the CPU allocate."""
    suggested = suggest_memory_format(tensor) if tensor.device.type == "cpu" else torch.preserve_format
    return torch.empty_like(tensor, memory_format=suggested)


def _elementwise(one: torch.Tensor, other: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.mul(one, other)


# operator -> by its arguments, a tensor laid out as its first result
_LAYOUTS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN._native_batch_norm_legit_functional.default: lambda source, *_: _suggested(source),
    _ATEN.native_batch_norm_backward.default: lambda grad, source, *_: _suggested(source),
    _ATEN.native_layer_norm_backward.default: lambda grad, source, *_: _contiguous(source),
    _ATEN._softmax_backward_data.default: lambda grad, *_: _contiguous(grad),
    _ATEN._log_softmax_backward_data.default: lambda grad, *_: _contiguous(grad),
    _ATEN.angle.default: _contiguous,
    _ATEN.mse_loss_backward.default: lambda grad, source, *_: _contiguous(source),
    _ATEN.smooth_l1_loss_backward.default: lambda grad, source, *_: _contiguous(source),
    _ATEN.huber_loss_backward.default: lambda grad, source, *_: _contiguous(source),
    _ATEN.softplus_backward.default: _elementwise,
    _ATEN.hardtanh_backward.default: _elementwise,
    _ATEN.hardswish_backward.default: _elementwise,
    _ATEN.hardsigmoid_backward.default: _elementwise,
    _ATEN.native_dropout_backward.default: _elementwise,
    _ATEN.elu_backward.default: lambda grad, alpha, scale, input_scale, is_result, source: torch.mul(grad, source),
}
_ON_CPU: dict[Any, Callable[..., torch.Tensor]] = {_ATEN.roll.default: lambda source, *_: _suggested(source)}


@contextlib.contextmanager
def real_layouts(mode: FakeTensorMode) -> Iterator[None]:
    """Results of `mode` are laid out as those of real kernels."""
    usual: Any = mode.dispatch

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RESULTS:
            with mode:
                return RESULTS[func](*args, **(kwargs or {}))
        made = usual(func, types, args, kwargs)
        return _relaid(mode, func, args, made) if func in _LAYOUTS or func in _ON_CPU else made

    mode.dispatch = dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        del mode.dispatch


def _relaid(mode: FakeTensorMode, func: Any, args: Any, made: Any) -> Any:
    alone = isinstance(made, torch.Tensor)
    first = made if alone else made[0]
    if first is None or not first.numel() or first.dim() < 2:
        return made
    if func in _ON_CPU and first.device.type != "cpu":
        return made
    with mode:
        strides = (_LAYOUTS.get(func) or _ON_CPU[func])(*args).stride()
        if strides == first.stride():
            return made
        first = torch.empty_strided(first.shape, strides, dtype=first.dtype, device=first.device)
    return first if alone else type(made)((first, *made[1:]))
