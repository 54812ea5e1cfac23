"""Which kernel `scaled_dot_product_attention` runs on CUDA, by architecture, version of torch and arguments.

CUDA builds of torch select the kernel in C++, by properties of the GPU. These rows state the same rules for other
machines. Source: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` of torch 2.11 to 2.14. Everything else about
attention (padding, masks, shapes of saved tensors) is torch's own code, in every build.

Conditions of versions:

| torch | cuDNN | what holds | function of the source |
|---|---|---|---|
| all | to 9.15.0 | cuDNN's kernel comes last on every GPU | `check_prefer_cudnn_attention` |
| all | 9.11.1 to 9.13 | cuDNN's kernel takes no dropout | `can_use_cudnn_attention` |
| all | to 9.10, 9.11 | cuDNN's kernel takes heads up to 128 only: sm_90, sm_100 | `check_cudnn_tensor_shapes` |
| 2.11 | all | cuDNN's kernel takes any dropout | |
| from 2.12 | all | cuDNN's kernel takes dropout in steps of 1/16 | `check_cudnn_dropout` |
| from 2.13 | all | cuDNN's kernel takes batches and heads up to 65,535 | `check_cudnn_tensor_shapes` |
| from 2.14 | from 9.22.1 | cuDNN's kernel: other sizes of heads | `check_cudnn_tensor_shapes` |
| from 2.14 | 9.19 to 9.25.0 | not cuDNN's kernel for one query: sm_10x, sm_11x | `check_cudnn_sdpa_decode` |
| from 2.14 | all | the memory-efficient kernel takes groups | `can_use_mem_efficient_attention` |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from .versions import cudnn_of_build, release

Capability = tuple[int, int]

HALVES = (torch.float16, torch.bfloat16)
_DTYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16}  # by number in C++


class TensorFacts(msgspec.Struct, frozen=True):
    """The properties of a tensor that the selection reads. dtype: None for dtypes that no fused kernel supports."""

    dtype: torch.dtype | None
    needs_grad: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Call(msgspec.Struct, frozen=True):
    """A call of attention on a device. trains: query, key or value requires a gradient."""

    capability: Capability
    cudnn: int
    torch: tuple[int, int]
    query: TensorFacts
    key: TensorFacts
    value: TensorFacts
    mask: TensorFacts | None
    dropout: float
    causal: bool
    grouped: bool
    trains: bool

    @property
    def head(self) -> int:
        """The size of a head of the query."""
        return self.query.shape[-1]


class Kernel(msgspec.Struct, frozen=True):
    """A kernel. number: in torch. enabled: whether the user allows it. takes: conditions that must all hold."""

    number: int
    enabled: Callable[[], bool]
    takes: tuple[Callable[[Call], bool], ...]


def choice(call: Call) -> int:
    """Return the number of the kernel that runs (`torch.nn.attention.SDPBackend`), -1 for none."""
    cudnn_first = call.capability[0] in (9, 10) and call.cudnn > 91500
    order = (CUDNN, FLASH, EFFICIENT, MATH) if cudnn_first else (FLASH, EFFICIENT, MATH, CUDNN)
    for kernel in order:
        if kernel.enabled() and all(condition(call) for condition in kernel.takes):
            return kernel.number
    return -1


def read(facts: Any, capability: Capability, dropout: float, causal: bool, grouped: bool, grad_mode: bool) -> Call:
    """Read a call from C++'s description: query, key, value and mask in turn."""
    tensors: list[TensorFacts | None] = []
    at = 0
    for _ in range(4):
        dims = facts[at]
        if dims < 0:
            tensors.append(None)
            at += 1
            continue
        dtype, needs_grad, first = facts[at + 1], facts[at + 2], at + 3
        sizes = tuple(facts[first + axis] for axis in range(dims))
        strides = tuple(facts[first + dims + axis] for axis in range(dims))
        tensors.append(TensorFacts(_DTYPES.get(dtype), bool(needs_grad), sizes, strides))
        at = first + 2 * dims
    query, key, value, mask = tensors
    assert query is not None
    assert key is not None
    assert value is not None
    trains = grad_mode and (query.needs_grad or key.needs_grad or value.needs_grad)
    return Call(
        capability,
        cudnn_of_build(),
        release(torch.__version__),
        query,
        key,
        value,
        mask,
        dropout,
        causal,
        grouped,
        trains,
    )


# Of all fused kernels


def _four_axes(call: Call) -> bool:
    return len(call.query.shape) == len(call.key.shape) == len(call.value.shape) == 4


def _no_empty_sequence(call: Call) -> bool:
    return call.query.shape[2] > 0 and call.key.shape[2] > 0


def _side_by_side(call: Call) -> bool:
    """Elements of a head, and of a row of the mask, are adjacent in memory."""
    tensors = (call.query, call.key, call.value, *((call.mask,) if call.mask else ()))
    return all(tensor.strides[-1] == 1 for tensor in tensors)


def _side_by_side_or_single(call: Call) -> bool:
    heads = all(tensor.strides[-1] == 1 for tensor in (call.query, call.key, call.value)) or call.head == 1
    return heads and (call.mask is None or call.mask.strides[-1] == 1)


def _same_batch(call: Call) -> bool:
    return call.query.shape[0] == call.key.shape[0] == call.value.shape[0]


def _same_heads(call: Call) -> bool:
    return call.query.shape[1] == call.key.shape[1] == call.value.shape[1]


def _heads_or_groups(call: Call) -> bool:
    if not call.grouped:
        return _same_heads(call)
    keys, values = call.key.shape[1], call.value.shape[1]
    return keys == values and call.query.shape[1] % keys == 0


def _cudnn_groups(call: Call) -> bool:
    """Keys and values may have fewer heads than the query."""
    if not call.grouped:
        return _same_heads(call)
    return all(call.query.shape[1] % tensor.shape[1] == 0 for tensor in (call.key, call.value))


def _one_dtype(call: Call, *dtypes: torch.dtype) -> bool:
    return call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in dtypes


def _half(call: Call) -> bool:
    return _one_dtype(call, *(HALVES if call.capability >= (8, 0) else HALVES[:1]))


def _ampere(call: Call) -> bool:
    return call.capability >= (8, 0)


# cuDNN


def _plain_mask(call: Call) -> bool:
    """The mask is broadcast along batch and heads at most, and has no gradient."""
    if call.mask is None:
        return True
    if call.mask.needs_grad:
        return False
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    sizes = (batch, heads, queries, keys)
    return len(call.mask.shape) in (2, 4) and all(
        size in (1, wanted) for size, wanted in zip(call.mask.shape[::-1], sizes[::-1], strict=False)
    )


def _cudnn_heads(call: Call) -> bool:
    head, values = call.head, call.value.shape[-1]
    newer = call.cudnn > 92200 and call.torch >= (2, 14)
    if head % 8 or values % 8:
        return False
    of_deepseek = call.capability[0] == 10 and (head, values) == (192, 128) and call.cudnn >= 91100
    if (head <= 128 and values <= 128) or of_deepseek:
        return True
    if call.cudnn < 91000:
        return False
    if call.capability != (9, 0) and not (newer and call.capability[0] == 10):
        return False
    has_backward = not newer or (head, values) in ((192, 128), (256, 256))
    return head <= 256 and values <= 256 and (has_backward or not call.trains)


def _cudnn_dropout(call: Call) -> bool:
    if not call.dropout:
        return True
    if call.query.shape[2] == 1 or 91100 < call.cudnn < 91400:
        return False
    return call.torch < (2, 12) or math.modf(call.dropout * 16)[0] == 0


def _cudnn_sizes(call: Call) -> bool:
    return call.torch < (2, 13) or max(call.query.shape[:2]) <= 65535


def _cudnn_decode(call: Call) -> bool:
    """cuDNN 9.24.1 has the mended kernel, too."""
    affected = call.torch >= (2, 14) and call.capability[0] in (10, 11)
    return not affected or call.query.shape[2] != 1 or not 91900 <= call.cudnn <= 92500 or call.cudnn == 92401


def _several_keys(call: Call) -> bool:
    return call.key.shape[2] != 1


def _not_deterministic(call: Call) -> bool:
    return not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled()


# Flash


def _no_mask(call: Call) -> bool:
    return call.mask is None


def _flash_heads(call: Call) -> bool:
    sizes = {tensor.shape[-1] for tensor in (call.query, call.key, call.value)}
    return len(sizes) == 1 and call.head <= 256


def _flash_trains(call: Call) -> bool:
    """Large heads have no backward on GPUs with little shared memory per block."""
    if not call.trains or not ((8, 6) <= call.capability <= (8, 9) or call.capability[0] == 12):
        return True
    return call.head <= 192 or (not call.dropout and call.head > 224)


def _square_if_causal(call: Call) -> bool:
    return not call.causal or call.query.shape[2] == call.key.shape[2]


# Memory-efficient


def _aligned_heads(call: Call) -> bool:
    half = call.query.dtype in HALVES
    if call.capability >= (8, 0):
        unit = 8 if half else 4
    else:
        unit = 8 if half and call.capability >= (7, 0) else 1
    head, values = call.head, call.value.shape[-1]
    return head == call.key.shape[-1] and head > 0 and values > 0 and head % unit == 0 and values % unit == 0


def _efficient_dtype(call: Call) -> bool:
    more = (torch.bfloat16,) if call.capability >= (8, 0) else ()
    return _one_dtype(call, torch.float16, torch.float32, *more)


def _efficient_groups(call: Call) -> bool:
    return _heads_or_groups(call) if call.torch >= (2, 14) else _same_heads(call)


_DENSE = (_four_axes, _no_empty_sequence, _same_batch)
CUDNN = Kernel(
    3,
    torch.backends.cuda.cudnn_sdp_enabled,
    (
        *_DENSE,
        _side_by_side_or_single,
        _cudnn_groups,
        _ampere,
        _half,
        _plain_mask,
        _cudnn_heads,
        _cudnn_sizes,
        _cudnn_dropout,
        _cudnn_decode,
        _several_keys,
        _not_deterministic,
    ),
)
FLASH = Kernel(
    1,
    torch.backends.cuda.flash_sdp_enabled,
    (
        *_DENSE,
        _side_by_side_or_single,
        _heads_or_groups,
        _ampere,
        _half,
        _no_mask,
        _flash_heads,
        _flash_trains,
        _square_if_causal,
    ),
)
EFFICIENT = Kernel(
    2,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    (*_DENSE, _side_by_side, _efficient_groups, _aligned_heads, _efficient_dtype),
)
MATH = Kernel(0, torch.backends.cuda.math_sdp_enabled, ())
