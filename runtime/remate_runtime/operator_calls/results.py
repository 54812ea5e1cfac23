"""The results of operators that torch infers wrongly, or for some types alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .grouped import grouped_mm
from .recurrent import LAYER, LAYER_BACKWARD, lstm_layer, lstm_layer_backward

# By operator, what makes empty tensors of the types that it returns for these arguments, on their device, or raises
# ValueError.
RESULTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._grouped_mm.default: grouped_mm,
    LAYER: lstm_layer,
    LAYER_BACKWARD: lstm_layer_backward,
}

BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit_no_training.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
)


def on_cpu(live: Any, args: Sequence[Any], made: Any) -> Any:
    """`made`, what torch infers for `args`, with the types that the kernels for the CPU give. Batch norm of
    half-precision input has statistics in full precision if its weights or running statistics have, else in that of the
    input; torch infers the input's for both. Its new running statistics have the type of the old ones; torch infers
    full precision.
    """
    if live not in BATCH_NORMS or args[0].dtype not in (torch.bfloat16, torch.float16):
        return made
    given = [one for one in args[1:5] if isinstance(one, torch.Tensor)]
    full = any(one.dtype is torch.float32 for one in given)
    types = [torch.float32 if full else args[0].dtype] * 2 + [one.dtype for one in args[3:5] if len(made) == 5]
    retyped = (
        tensor if tensor.dtype is dtype else torch.empty_like(tensor, dtype=dtype)
        for tensor, dtype in zip(made[1:], types, strict=True)
    )
    return type(made)((made[0], *retyped))
