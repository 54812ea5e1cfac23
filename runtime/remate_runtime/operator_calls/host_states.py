"""The seed and the offset of fused attention, which kernels of CUDA return and read on the host.

They are scalars on the CPU unless the stream is being recorded for a CUDA graph, and on the device then. PyTorch's meta
functions, and therefore files, place them on the device. Source: `aten/src/ATen/native/transformers/cuda/attention.cu`,
and "Note [Seed and Offset]" in `torch/_meta_registrations.py`, torch 2.11; observed on an H100.
"""

from __future__ import annotations

from collections.abc import Collection

from ..format.tensor_type import TensorType

# operator -> positions of arguments that the kernel reads on the host. A GPU pointer there crashes the process.
_READ = {"aten._scaled_dot_product_efficient_attention_backward": (7, 8)}
_RETURNED_BY = (
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._efficient_attention_forward",
    "aten._cudnn_attention_forward",
)


def read_on_host(operator: str) -> Collection[int]:
    """Return the positions of the arguments that an operator of CUDA reads on the host, whatever the file declares."""
    return _READ.get(operator, ())


def returned_on_host(operator: str, declared: TensorType) -> bool:
    """Return whether an operator of CUDA may return a result of this type on the host, although the file places it on
    the device."""
    return operator in _RETURNED_BY and declared.dtype == "i64" and declared.shape == ()
