"""While tracing: results have the strides, sizes and types that real kernels give them, where fake kernels claim others
or refuse.

A view of a result is valid for one of the two only, so a step traced with the wrong strides would fail when it runs.
Like `torch_api`, this module touches unstable interfaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from remate_runtime.operator_calls import BATCH_NORMS, RESULTS, on_cpu

_ATEN: Any = torch.ops.aten


def _contiguous(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
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
    _ATEN.native_group_norm.default: lambda source, *_: _suggested(source),
    _ATEN.native_batch_norm_backward.default: lambda grad, source, *_: _suggested(source),
    _ATEN._batch_norm_with_update_functional.default: lambda source, *_: _suggested(source),
    _ATEN.batch_norm_backward.default: lambda grad, source, *_: _suggested(source),
    _ATEN.native_layer_norm_backward.default: lambda grad, source, *_: _contiguous(source),
    _ATEN._softmax_backward_data.default: lambda grad, *_: _contiguous(grad),
    _ATEN._log_softmax_backward_data.default: lambda grad, *_: _contiguous(grad),
    _ATEN.angle.default: _contiguous,
    _ATEN.poisson.default: _contiguous,
    _ATEN._standard_gamma.default: _contiguous,
    _ATEN.normal.Tensor_Tensor: _contiguous,
    _ATEN.normal.float_Tensor: lambda mean, std, *_: _contiguous(std),
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
_AS_STRIDED = _ATEN.as_strided.default
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)
_FEW = 2**22  # elements: some milliseconds
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
        if func in BATCH_NORMS and args[0].device.type == "cpu":
            with mode:
                made = on_cpu(func, args, made)
        if func in _VIEWS and 1 in made.shape:
            strides = _viewed(*args, **(kwargs or {}))
            if strides == made.stride():
                return made
            return usual(_AS_STRIDED, types, (args[0], made.shape, strides, made.storage_offset()), {})
        made = _relaid(mode, func, args, made) if func in _LAYOUTS or func in _ON_CPU else made
        return _exact(mode, func, args, kwargs or {}, made) if _has_odd_axes(args) else made

    mode.dispatch = dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        del mode.dispatch


def _viewed(source: torch.Tensor, shape: Any) -> tuple[int, ...]:
    """The strides of a view as torch's kernel computes them. Those of an axis of one element matter: kernels that look
    for channels last, and `contiguous()`, then go other ways."""
    with torch._C._DisablePythonDispatcher():  # which has a kernel of its own
        bare = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        return bare.view(shape).stride()


def _has_odd_axes(args: Any) -> bool:
    """Whether a tensor has an axis of one element with a stride that it would not have if it were contiguous."""
    for arg in args:
        if isinstance(arg, list | tuple):
            if _has_odd_axes(arg):
                return True
        elif isinstance(arg, torch.Tensor) and 1 in arg.shape and arg.numel():
            usual = make_contiguous_strides_for(arg.shape)
            if any(n == 1 and is_ != was for n, is_, was in zip(arg.shape, arg.stride(), usual, strict=True)):
                return True
    return False


def _exact(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """With the strides of axes of one element as the real kernel chooses them, which neither the quick ones for fake
    tensors nor those without data follow. Where that is not known: what the fake kernels claim."""
    given, own = _tensors((args, kwargs)), _tensors(made)
    random = torch.Tag.nondeterministic_seeded in func.tags
    shared = {tensor.untyped_storage()._cdata for tensor in given} & {t.untyped_storage()._cdata for t in own}
    if func.is_view or func._schema.is_mutable or random or shared or "device" in kwargs:
        return made
    if max(tensor.numel() for tensor in (*given, *own)) > _FEW:
        return made
    strides = _real_strides(func, args, kwargs)
    if len(own) != len(strides) or all(leaf.stride() == laid for leaf, laid in zip(own, strides, strict=True)):
        return made
    backward_start = iter(strides)
    return pytree.tree_map_only(torch.Tensor, lambda leaf: _laid_out(mode, leaf, next(backward_start)), made)


def _real_strides(func: Any, args: Any, kwargs: Any) -> list[tuple[int, ...]]:
    """Of the results of `func` where it is run on zeros; empty if it cannot be."""

    def filled(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).zero_()

    try:
        with torch._C._DisablePythonDispatcher():
            args, kwargs = pytree.tree_map_only(torch.Tensor, filled, (args, kwargs))
            return [tensor.stride() for tensor in _tensors(func(*args, **kwargs))]
    except (RuntimeError, IndexError, AssertionError):  # zeros are no arguments for it; there is no such device
        return []


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _laid_out(mode: FakeTensorMode, made: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    with mode:
        return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)


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
    first = _laid_out(mode, first, strides)
    return first if alone else type(made)((first, *made[1:]))
