"""The results of operators that torch infers wrongly, or for some types only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .grouped import grouped_mm
from .recurrent import LAYER, LAYER_BACKWARD, lstm_layer, lstm_layer_backward


def _kept(source: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.empty_like(source)


# By operator: a function that returns empty tensors of its result types for these arguments, on their device, or raises
# ValueError.
RESULTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.uniform.default: _kept,
    torch.ops.aten._grouped_mm.default: grouped_mm,
    LAYER: lstm_layer,
    LAYER_BACKWARD: lstm_layer_backward,
}

BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit_no_training.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
)
_GROUP_NORM_BACKWARD = torch.ops.aten.native_group_norm_backward.default
RETYPED = (*BATCH_NORMS, _GROUP_NORM_BACKWARD)


def on_cpu(live: Any, args: Sequence[Any], inferred: Any) -> Any:
    """Correct the types that torch infers for `args` to those of the CPU kernels.

    Batch norm of half-precision input has statistics in full precision if its weights or running statistics have, else
    in the input's precision; torch infers the input's for both. New running statistics have the type of the old ones;
    torch infers full precision. The gradient of what a group norm normalised has the type of that; torch infers the
    type of the weight.
    """
    if live is _GROUP_NORM_BACKWARD and inferred[0] is not None and args[1].dtype in (torch.bfloat16, torch.float16):
        return type(inferred)((torch.empty_like(inferred[0], dtype=args[1].dtype), *inferred[1:]))
    if live not in BATCH_NORMS or args[0].dtype not in (torch.bfloat16, torch.float16):
        return inferred
    statistics = [argument for argument in args[1:5] if isinstance(argument, torch.Tensor)]
    full = any(tensor.dtype is torch.float32 for tensor in statistics)
    running = [tensor.dtype for tensor in args[3:5] if len(inferred) == 5]
    types = [torch.float32 if full else args[0].dtype] * 2 + running
    retyped = (
        tensor if tensor.dtype is dtype else torch.empty_like(tensor, dtype=dtype)
        for tensor, dtype in zip(inferred[1:], types, strict=True)
    )
    return type(inferred)((inferred[0], *retyped))
