"""While tracing: gives results the strides, sizes and types of real kernels, where fake kernels differ or fail.

A view is valid for certain strides only, so a step traced with wrong strides would fail when it runs.
This module uses unstable interfaces.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

from remate_runtime.operator_calls import RESULTS, RETYPED, on_cpu
from remate_runtime.torch_private.pytree import tree_leaves, tree_map_only

from .dispatch import dispatched_by

_ATEN: Any = torch.ops.aten


def _contiguous(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _suggested(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    """The layout that most CPU kernels allocate: channels last if the tensor is, else contiguous."""
    suggested = suggest_memory_format(tensor) if tensor.device.type == "cpu" else torch.preserve_format
    return torch.empty_like(tensor, memory_format=suggested)


def _kept(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(tensor)


def _second_kept(first: object, second: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(second)


def _second_contiguous(first: object, second: torch.Tensor, *_: object) -> torch.Tensor:
    return _contiguous(second)


def _second_suggested(first: object, second: torch.Tensor, *_: object) -> torch.Tensor:
    return _suggested(second)


def _elementwise(left: torch.Tensor, right: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.mul(left, right)


def _quotient(left: torch.Tensor, right: torch.Tensor, *_: object) -> torch.Tensor:
    """Elementwise, of integers as floats: expanded ones are cast to contiguous tensors."""
    return torch.div(left, right)


def _second_first(left: torch.Tensor, right: torch.Tensor, *_: object) -> torch.Tensor:
    """For kernels that iterate over their second argument first: where layouts differ, that decides."""
    return torch.mul(right, left)


def _prelu(gradient: torch.Tensor, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(source, weight, gradient)


def _angle(source: torch.Tensor) -> torch.Tensor:
    return _contiguous(source) if source.is_complex() else _kept(source)


def _soft_margin(gradient: torch.Tensor, source: torch.Tensor, target: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.mul(target, torch.mul(torch.neg(target), source))


def _first_and_last(first: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.mul(first, others[-1])


# operator -> function of its arguments that returns a tensor with the layout of the first result
_LAYOUTS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN._native_batch_norm_legit_functional.default: _suggested,
    _ATEN.native_group_norm.default: _suggested,
    _ATEN.native_batch_norm_backward.default: _second_suggested,
    _ATEN._batch_norm_with_update_functional.default: _suggested,
    _ATEN.batch_norm_backward.default: _second_suggested,
    _ATEN.native_layer_norm_backward.default: _second_contiguous,
    _ATEN._softmax_backward_data.default: _contiguous,
    _ATEN._log_softmax_backward_data.default: _contiguous,
    _ATEN.angle.default: _angle,
    _ATEN.poisson.default: _contiguous,
    _ATEN._standard_gamma.default: _contiguous,
    _ATEN.normal.Tensor_Tensor: _contiguous,
    _ATEN.normal.float_Tensor: _second_contiguous,
    _ATEN.mse_loss_backward.default: _second_contiguous,
    _ATEN.smooth_l1_loss_backward.default: _second_contiguous,
    _ATEN.huber_loss_backward.default: _second_contiguous,
    _ATEN.softplus_backward.default: _elementwise,
    _ATEN.hardtanh_backward.default: _elementwise,
    _ATEN.hardswish_backward.default: _elementwise,
    _ATEN.hardsigmoid_backward.default: _elementwise,
    _ATEN.native_dropout_backward.default: _elementwise,
    _ATEN.threshold_backward.default: _second_first,
    _ATEN.leaky_relu_backward.default: _second_first,
    _ATEN.rrelu_with_noise_backward.default: _second_first,
    _ATEN._prelu_kernel_backward.default: _prelu,
    _ATEN.logit_backward.default: _elementwise,
    _ATEN.copysign.Tensor: _quotient,
    _ATEN.xlogy.Tensor: _quotient,
    _ATEN.special_xlog1py.default: _quotient,
    _ATEN.logaddexp.default: _elementwise,
    _ATEN.logaddexp2.default: _elementwise,
    _ATEN.logical_and.default: _elementwise,
    _ATEN.logical_or.default: _elementwise,
    _ATEN.logical_xor.default: _elementwise,
    _ATEN.pow.Scalar: _second_contiguous,
    _ATEN.heaviside.default: _elementwise,
    _ATEN.complex.default: _elementwise,
    _ATEN.polar.default: _elementwise,
    _ATEN.floor_divide.default: _elementwise,
    _ATEN.div.Tensor_mode: _elementwise,
    _ATEN.elu_backward.default: _first_and_last,
    _ATEN.soft_margin_loss_backward.default: _soft_margin,
    _ATEN._native_batch_norm_legit_no_training.default: _suggested,
    _ATEN._weight_norm_interface.default: _contiguous,
    _ATEN.isin.Tensor_Tensor: _contiguous,
    _ATEN.glu_backward.default: _second_contiguous,
    _ATEN.log_sigmoid_backward.default: _kept,
    _ATEN.binary_cross_entropy.default: _kept,
    _ATEN.binary_cross_entropy_backward.default: _second_kept,
    _ATEN.huber_loss.default: _kept,
    _ATEN.index_fill.int_Scalar: _kept,
}
_BY_TYPES = (_ATEN.ldexp.Tensor,)  # the real kernel runs, because the layout depends on the types in no simple way
_AS_STRIDED = _ATEN.as_strided.default
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)
_LOW = (torch.bfloat16, torch.float16)
_FEW = 2**22  # elements; takes some milliseconds
_ON_CPU: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN.roll.default: _suggested,
    _ATEN.native_channel_shuffle.default: _suggested,
    _ATEN.native_group_norm_backward.default: _second_suggested,
    _ATEN.log_sigmoid_forward.default: _contiguous,
    _ATEN.reflection_pad2d_backward.default: _second_suggested,
    _ATEN.replication_pad2d_backward.default: _second_suggested,
    _ATEN.reflection_pad3d_backward.default: _second_suggested,
    _ATEN.replication_pad3d_backward.default: _second_suggested,
    _ATEN.reflection_pad3d.default: _suggested,
    _ATEN.replication_pad3d.default: _suggested,
}


@contextlib.contextmanager
def real_layouts(mode: FakeTensorMode) -> Generator[None]:
    """Give the results of `mode` the layouts of real kernels."""
    usual: Any = mode.dispatch

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RESULTS:
            with mode:
                return RESULTS[func](*args, **kwargs)
        result = usual(func, types, args, kwargs)
        if func in RETYPED and args[0].device.type == "cpu":
            with mode:
                result = on_cpu(func, args, result)
        if func in _VIEWS and 1 in result.shape:
            strides = _viewed(*args, **kwargs)
            if strides == result.stride():
                return result
            return usual(_AS_STRIDED, types, (args[0], result.shape, strides, result.storage_offset()), {})
        if _follows_expanded(func, args, kwargs, result):
            result = _as_in_single(mode, func, args, kwargs, result)
        result = _in_layout(mode, func, args, result) if func in _LAYOUTS or func in _ON_CPU else result
        return _exact(mode, func, args, kwargs, result) if func in _BY_TYPES or _has_odd_axes(args) else result

    with dispatched_by(mode, dispatch):
        yield


def _viewed(source: torch.Tensor, shape: Any) -> tuple[int, ...]:
    """The strides of a view as torch's kernel computes them. Strides of an axis of one element matter to kernels that
    test for channels last, and to `contiguous()`."""
    with torch._C._DisablePythonDispatcher():  # which has a kernel of its own
        bare = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        return bare.view(shape).stride()


def _follows_expanded(func: Any, args: Any, kwargs: Any, result: object) -> bool:
    """Whether a result has the shape of an expanded argument in low precision. Fake kernels cast that to single
    precision, which makes it contiguous; the layout of real results follows the other arguments."""
    return (
        isinstance(result, torch.Tensor)
        and result.dtype in (*_LOW, torch.bool)
        and not func.is_view
        and func.namespace == "aten"
        and "device" not in kwargs
        and any(
            isinstance(arg, torch.Tensor)
            and arg.dtype in _LOW
            and arg.shape == result.shape
            and any(n > 1 and not by for n, by in zip(arg.shape, arg.stride(), strict=True))
            for arg in args
        )
    )


def _as_in_single(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    """Give a result the strides that it has in single precision, where fake kernels do not cast."""

    def single(value: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if value.dtype in _LOW else value.dtype
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")

    args, kwargs = tree_map_only(torch.Tensor, single, (args, kwargs))
    strides = func(*args, **kwargs).stride()
    return result if strides == result.stride() else _laid_out(mode, result, strides)


def _has_odd_axes(args: Any) -> bool:
    """Whether a tensor has an axis of one element with another stride than a contiguous tensor."""
    for arg in args:
        if isinstance(arg, list | tuple):
            if _has_odd_axes(arg):
                return True
        elif isinstance(arg, torch.Tensor) and 1 in arg.shape and arg.numel():
            usual = make_contiguous_strides_for(arg.shape)
            if any(n == 1 and is_ != was for n, is_, was in zip(arg.shape, arg.stride(), usual, strict=True)):
                return True
    return False


def _exact(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Correct strides to those of the real kernel: of axes of one element, which fake and meta kernels ignore, too. If
    the real kernel cannot run, keep the strides of the fake kernel."""
    given, own = _tensors((args, kwargs)), _tensors(result)
    random = torch.Tag.nondeterministic_seeded in func.tags
    shared = {tensor.untyped_storage()._cdata for tensor in given} & {t.untyped_storage()._cdata for t in own}
    if func.is_view or func._schema.is_mutable or random or shared or "device" in kwargs:
        return result
    if max(tensor.numel() for tensor in (*given, *own)) > _FEW:
        return result
    strides = _real_strides(func, args, kwargs)
    if len(own) != len(strides) or all(leaf.stride() == laid for leaf, laid in zip(own, strides, strict=True)):
        return result
    backward_start = iter(strides)
    return tree_map_only(torch.Tensor, lambda leaf: _laid_out(mode, leaf, next(backward_start)), result)


def _real_strides(func: Any, args: Any, kwargs: Any) -> list[tuple[int, ...]]:
    """The strides of the results of `func` on zeros; empty if it cannot run."""

    def filled(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).zero_()

    try:
        with torch._C._DisablePythonDispatcher():
            args, kwargs = tree_map_only(torch.Tensor, filled, (args, kwargs))
            return [tensor.stride() for tensor in _tensors(func(*args, **kwargs))]
    except (RuntimeError, IndexError, AssertionError):  # zeros are invalid arguments, or the device is absent
        return []


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _laid_out(mode: FakeTensorMode, result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    with mode:
        return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _in_layout(mode: FakeTensorMode, func: Any, args: Any, result: Any) -> Any:
    first = result if isinstance(result, torch.Tensor) else result[0]
    if first is None or not first.numel() or first.dim() < 2:
        return result
    if func in _ON_CPU and first.device.type != "cpu":
        return result
    with mode:
        like = (_LAYOUTS.get(func) or _ON_CPU[func])(*args)
        if like.shape != first.shape:  # padded
            like = torch.empty(first.shape, device=first.device).to(memory_format=suggest_memory_format(like))
    strides = like.stride()

    def corrected(tensor: torch.Tensor) -> torch.Tensor:
        return _laid_out(mode, tensor, strides) if tensor.shape == first.shape else tensor

    return result if strides == first.stride() else tree_map_only(torch.Tensor, corrected, result)
