"""Rules for decisions that are compiled into CUDA builds of torch only. The rest is torch's dispatch, in every build.

| operator | rule | source, torch |
|---|---|---|
| `scaled_dot_product_attention` | `attention.py` | `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, 2.11 to
2.14 |
| those of `WHOLE` | stay one operator | `native_functions.yaml`: `CUDA:` beside `CompositeImplicitAutograd:`, 2.11 to
2.14 |
| `ctc_loss` | refused: whether cuDNN's kernel runs depends on the GPU | `aten/src/ATen/native/LossCTC.cpp`, 2.13
and 2.14 |
| `gru_cell` | refused: its fused kernel has no meta function | `aten/src/ATen/native/RNN.cpp`,
2.13 |
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

import torch

from ...errors import CaptureError
from ..eager_kernels import RefusedOperatorError

# Operators with a kernel for CUDA, which CPU builds lack and decompose.
WHOLE = ("_fused_rms_norm", "silu_backward", "mish_backward")
REFUSED: tuple[Any, ...] = (
    torch.ops.aten.ctc_loss.IntList,
    torch.ops.aten.ctc_loss.Tensor,
    torch.ops.aten.gru_cell.default,
)
_KEY: Any = torch._C.DispatchKey
_KEYS = (_KEY.Autograd, _KEY.CompositeImplicitAutograd)


@contextlib.contextmanager
def rules() -> Generator[None]:
    """Let operators on CUDA be those of a CUDA build, in the `with` block."""
    library: Any = torch.library.Library("aten", "IMPL")
    tables = {operator: dict(operator.py_kernels) for operator in REFUSED}
    try:
        for operator in REFUSED:
            operator.py_kernels.update(dict.fromkeys(_KEYS, functools.partial(_refuse, operator)))
            operator._dispatch_cache.clear()
        for name in WHOLE:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
                library.impl(name, _no_kernel, "CUDA")
        yield
    finally:
        library._destroy()
        for operator, kernels in tables.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def _refuse(operator: Any, *args: Any, **kwargs: Any) -> Any:
    raise RefusedOperatorError(
        f"which kernel {operator} runs on CUDA is known only on a GPU", hint="plan this model on a machine with a GPU"
    )


def _no_kernel(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError("nothing can be computed on CUDA: there is no GPU here")
