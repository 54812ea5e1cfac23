"""While tracing: replaces PyTorch's Python decompositions that differ from eager by what eager runs.

This module uses unstable interfaces.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy
import torch
from torch.utils._mode_utils import no_dispatch

from remate_runtime.operator_calls import uses_known_workspace

from ..errors import CaptureError

_WHOLE = ("upsample_", "_upsample_")
_WITHOUT_CUDNN = "call this layer within torch.backends.cudnn.flags(enabled=False)"
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_KEY: Any = torch._C.DispatchKey
_KEYS = (_KEY.Autograd, _KEY.CompositeImplicitAutograd)


class RefusedOperatorError(CaptureError):
    """An operator that a schedule cannot run as eager does. The caller adds its place."""


@contextlib.contextmanager
def eager_kernels(rates_vary: bool, stepwise: bool) -> Generator[None]:
    """Trace the operators that eager runs.

    - Interpolation is one operator.
    - Dropout with rate 1 draws no numbers. On the CPU, dropout is several operators where the fused one rounds
      differently.
    - Recurrent layers on the CPU: a layer and direction of an LSTM is one operator; others are time steps. On CUDA
      they are refused.
    - Batch norm by cuDNN is one operator.
    - One-hot vectors are written, so that classes out of range are refused.

    Args:
        rates_vary: Dropout rates may follow from live attributes, so one form must serve all rates.
        stepwise: Trace LSTMs as time steps too.
    """
    whole = [op for name in dir(torch.ops.aten) if name.startswith(_WHOLE) for op in _overloads(name)]
    recurrent = [op for name in _RECURRENT for op in _overloads(name) if op._overloadname in ("input", "data")]
    dropout: Any = torch.ops.aten.dropout.default
    kernels: dict[Any, Callable[..., Any] | None] = dict.fromkeys(whole)
    kernels |= {op: _recurrent(op, stepwise) for op in recurrent}
    kernels[dropout] = _dropout(dropout.py_kernels.get(_KEY.Autograd), rates_vary)
    kernels[torch.ops.aten.cudnn_batch_norm.default] = _cudnn_batch_norm
    saved = {op: dict(op.py_kernels) for op in (*kernels, *_DRAWS, *_EXACT, *_ASSERTIONS)}
    flatten = torch.nn.RNNBase.flatten_parameters
    torch.nn.RNNBase.flatten_parameters = _not_flattened  # it reads addresses, and traced parameters have none
    try:
        for op, kernel in kernels.items():
            for key in _KEYS:
                usual = op.py_kernels.pop(key, None)
                if kernel is not None and usual is not None:
                    op.py_kernels[key] = kernel
            op._dispatch_cache.clear()
        for op, kernel in (_DRAWS | _EXACT | _ASSERTIONS).items():
            op.py_kernels.update(dict.fromkeys(_KEYS, kernel))
            op._dispatch_cache.clear()
        yield
    finally:
        torch.nn.RNNBase.flatten_parameters = flatten
        for op, table in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(table)
            op._dispatch_cache.clear()


def _not_flattened(self: torch.nn.RNNBase) -> None:
    """Replace `RNNBase.flatten_parameters`."""


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name)
    return [getattr(packet, overload) for overload in packet.overloads()] if hasattr(packet, "overloads") else []


def _dropout(usual: Any, rates_vary: bool) -> Callable[..., torch.Tensor]:
    def dropout(a: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
        if train and not a.numel():
            return a
        if train and p == 1:
            return a * torch.zeros((), dtype=a.dtype, device=a.device)
        if train and p > 0 and a.device.type == "cpu" and _rounds_otherwise(a.dtype, p, rates_vary):
            return a * (_in_memory_order(torch.empty_like(a, device="meta").stride(), a, 1 - p) / (1 - p))
        return usual(a, p, train)

    return dropout


def _cudnn_batch_norm(
    source: torch.Tensor,
    weight: object,
    bias: object,
    mean: object,
    variance: object,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm for which torch selects cuDNN. Tracing would decompose `cudnn_batch_norm`. `_batch_norm_with_update`
    selects cuDNN by the same function when it runs, and its schema states what it writes
    (`_batch_norm_with_update_cuda` in `aten/src/ATen/native/cuda/Normalization.cu`). It needs running statistics."""
    if not training or mean is None:
        what = "without running statistics" if training else "in evaluation mode"
        raise RefusedOperatorError(
            f"forward runs batch norm {what} by cuDNN, which no schedule can run",
            hint=_WITHOUT_CUDNN,
        )
    return torch.ops.aten._batch_norm_with_update.default(source, weight, bias, mean, variance, momentum, eps)


def _in_memory_order(strides: Sequence[int], like: torch.Tensor, p: Any) -> torch.Tensor:
    """Draw the numbers that `bernoulli_` draws into a tensor with these strides, in memory order. The functional
    operator has a contiguous result. like: a tensor of the same shape."""
    order = sorted(range(like.dim()), key=lambda axis: (like.shape[axis] > 1, -strides[axis]))
    back = sorted(range(like.dim()), key=order.__getitem__)
    source = like.detach()
    if order == sorted(order):
        return torch.bernoulli(source, p)
    return torch.bernoulli(source.permute(order), p).permute(back)


def _bernoulli_(onto: torch.Tensor, p: object = 0.5, *, generator: object = None) -> torch.Tensor:
    if generator is not None:
        raise _refused("bernoulli_ with a generator of its own")
    return onto.copy_(_in_memory_order(onto.stride(), onto, p))


def _normal_(onto: torch.Tensor, mean: object = 0.0, std: object = 1.0, *, generator: object = None) -> torch.Tensor:
    """Draw into a copy of the tensor, which has no gaps. Refuse tensors with gaps: their algorithm differs."""
    if generator is not None:
        raise _refused("normal_ with a generator of its own")
    copied = torch.empty_like(onto, device="meta")
    if onto.device.type == "cpu" and copied.is_contiguous() and not onto.is_contiguous() and onto.numel() >= _FILLED:
        raise _refused("normal_ on a slice whose elements do not lie side by side")
    return onto.copy_(torch.ops.aten.normal_functional(onto.detach(), mean, std))


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Write ones as eager's kernel does. It refuses classes out of range; torch's decomposition asserts them."""
    if num_classes == -1:
        raise RefusedOperatorError(
            "forward calls one_hot without num_classes, so that the size of the result depends on the data",
            hint="give the number of classes: one_hot(classes, num_classes)",
        )
    zeros = torch.zeros(*classes.shape, num_classes, dtype=classes.dtype, device=classes.device)
    return zeros.scatter_(-1, classes.unsqueeze(-1), 1) if classes.numel() else zeros


def _rrelu(
    source: torch.Tensor, lower: object = 0.125, upper: object = 1 / 3, training: bool = False, generator: object = None
) -> Any:
    """Draw as eager's CPU kernel does: into a contiguous tensor, with a contiguous result."""
    if generator is not None:
        raise _refused("rrelu with a generator of its own")
    laid = source.contiguous() if training and source.device.type == "cpu" else source
    return torch.ops.aten.rrelu.default._op_dk(_KEY.CompositeImplicitAutograd, laid, lower, upper, training)


def _assert_async(condition: torch.Tensor, message: str = "") -> None:
    quoted = f": {message!r}" if message else ""
    raise RefusedOperatorError(
        f"forward asserts a condition on a tensor's values (torch._assert_async{quoted}), and a schedule cannot",
        hint="check it outside of forward: on its inputs, or on a condition that it returns",
    )


def _refused(what: str) -> CaptureError:
    return RefusedOperatorError(
        f"forward calls {what}, which draws other numbers in a schedule",
        hint="draw into a tensor of its own (torch.randn_like(part)) and copy: part.copy_(...)",
    )


_FILLED = 16  # elements from which a contiguous tensor on the CPU is filled by whole vectors
# Operators whose functional forms draw other numbers, in another order or layout.
_DRAWS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.bernoulli_.float: _bernoulli_,
    torch.ops.aten.normal_.default: _normal_,
    torch.ops.aten.rrelu.default: _rrelu,
}
_EXACT = {torch.ops.aten.one_hot.default: _one_hot}
# Assertions on values have no result, so a graph would lose them.
_ASSERTIONS = dict.fromkeys((torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg), _assert_async)


def _rounds_otherwise(dtype: torch.dtype, p: float, varies: bool) -> bool:
    """Whether the fused operator and eager round differently. The fused one scales by 1 / (1 - p) in double precision;
    eager divides a mask by 1 - p in the tensor's precision. Most rates give equal numbers, but a varying rate takes
    some that do not."""
    if dtype in (torch.float16, torch.bfloat16):
        return True
    if dtype is not torch.float32:
        return False
    return varies or bool(numpy.float32(1) / numpy.float32(1 - p) != numpy.float32(1 / (1 - p)))


def _recurrent(op: Any, stepwise: bool) -> Callable[..., Any]:
    """Trace recurrent layers through torch's own code, which makes eager's calls and keeps dropout between layers."""

    name = op.name().partition("::")[2].partition(".")[0]
    plain = name.startswith("rnn_")  # of operators that every device has, where cuDNN does not run them

    def layers(*args: Any, **kwargs: Any) -> Any:
        if args[0].device.type == "cuda" and (torch._C._get_cudnn_enabled() or not plain):
            raise RefusedOperatorError(
                f"forward runs {name} on CUDA, by kernels that no schedule can run",
                hint=_WITHOUT_CUDNN
                if plain
                else "plan the parts without it: at='encoder.*'; or write its time steps "
                "with nn.Linear and torch.sigmoid",
            )
        saved = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
        torch._C._set_mkldnn_enabled(saved[0] and not stepwise and _workspace_known(args[0].dtype))
        torch._C._set_cudnn_enabled(False)
        try:
            return op._op_dk(_KEY.CompositeImplicitAutograd, *args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(saved[0])
            torch._C._set_cudnn_enabled(saved[1])

    return layers


@functools.cache
def _workspace_known(dtype: torch.dtype) -> bool:
    with no_dispatch(), torch.no_grad():
        return uses_known_workspace(dtype)
