"""While tracing: operators that PyTorch decomposes in Python, and not as eager runs them, do what eager does.

Beside `torch_api` the only module that touches unstable interfaces.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils._mode_utils import no_dispatch

from remate_runtime.operator_calls import workspace_as_told

_WHOLE = ("upsample_", "_upsample_")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_KEY: Any = torch._C.DispatchKey
_KEYS = (_KEY.Autograd, _KEY.CompositeImplicitAutograd)


@contextlib.contextmanager
def eager_kernels(rates_vary: bool, stepwise: bool) -> Iterator[None]:
    """Interpolation stays one operator. Dropout of everything draws no numbers; on the CPU it is made of several operators, as
    eager makes it, where the fused one rounds otherwise. Recurrent layers are those that eager runs, on the CPU: an LSTM's
    layer and direction is one operator there, unless `stepwise` asks for time steps, and others are time steps. On CUDA, where
    cuDNN hides its workspace, all are. rates_vary: those of dropout may follow from live attributes, so that one form has to
    serve all rates.
    """
    whole = [op for name in dir(torch.ops.aten) if name.startswith(_WHOLE) for op in _overloads(name)]
    recurrent = [op for name in _RECURRENT for op in _overloads(name) if op._overloadname in ("input", "data")]
    dropout: Any = torch.ops.aten.dropout.default
    kernels: dict[Any, Callable[..., Any] | None] = dict.fromkeys(whole)
    kernels |= {op: _recurrent(op, op.py_kernels.get(_KEY.Autograd), stepwise) for op in recurrent}
    kernels[dropout] = _dropout(dropout.py_kernels.get(_KEY.Autograd), rates_vary)
    saved = {op: dict(op.py_kernels) for op in kernels}
    try:
        for op, kernel in kernels.items():
            for key in _KEYS:
                usual = op.py_kernels.pop(key, None)
                if kernel is not None and usual is not None:
                    op.py_kernels[key] = kernel
            op._dispatch_cache.clear()
        yield
    finally:
        for op, table in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(table)
            op._dispatch_cache.clear()


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name)
    return [getattr(packet, overload) for overload in packet.overloads()] if hasattr(packet, "overloads") else []


def _dropout(usual: Any, rates_vary: bool) -> Callable[..., torch.Tensor]:
    def dropout(a: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
        if train and p == 1:
            return a * torch.zeros((), dtype=a.dtype, device=a.device)
        if train and p > 0 and a.device.type == "cpu" and _rounds_otherwise(a.dtype, p, rates_vary):
            return a * (torch.bernoulli(a.detach(), 1 - p) / (1 - p))
        return usual(a, p, train)

    return dropout


def _rounds_otherwise(dtype: torch.dtype, p: float, varies: bool) -> bool:
    """Whether the fused operator, which scales by 1 / (1 - p) in double precision, rounds otherwise than eager, which divides
    a mask by 1 - p in the precision of the tensor. At most rates both give the same number; of those that a rate which
    varies takes, some do not."""
    if dtype in (torch.float16, torch.bfloat16):
        return True
    if dtype is not torch.float32:
        return False
    return varies or bool(numpy.float32(1) / numpy.float32(1 - p) != numpy.float32(1 / (1 - p)))


def _recurrent(op: Any, usual: Any, stepwise: bool) -> Callable[..., Any]:
    """Recurrent layers by torch's own code, which calls what eager calls and keeps the dropout between layers. On CUDA that has
    operators that cannot be traced, so there `usual` unrolls where nothing is dropped, which it would lose."""
    at = [argument.name for argument in op._schema.arguments].index("num_layers")

    def layers(*args: Any, **kwargs: Any) -> Any:
        drops = args[at] > 1 and args[at + 1] > 0 and args[at + 2]
        if args[0].device.type == "cuda" and not drops:
            return usual(*args, **kwargs)
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
        return workspace_as_told(dtype)
