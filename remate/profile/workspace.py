"""Bytes that an operation allocates and frees beyond its outputs, where no device is there to measure. Needs no torch.

The rules err on the side of too much: a plan made with them should not run out of memory on the device. What is not
listed needs none, or too little to matter.
"""

from __future__ import annotations

from math import prod

from remate_runtime.format import DTYPES, TensorType
from remate_runtime.step import Graph, Op, Ref

_SORT_BYTES = 48  # per index: keys and positions of a radix sort, each twice, and the segments found in them
# These take contiguous arguments and copy others first (on CPU).
_CONTIGUOUS = frozenset(
    """native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data embedding_dense_backward cumsum max_pool2d_with_indices
    max_pool2d_with_indices_backward""".split()
)
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2)}


def workspace(graph: Graph, op: Op, kind: str) -> int:
    """kind: of the device, "cpu" or "cuda"."""
    name = op.op.split(".")[1]
    if name in _PRODUCTS:
        return sum(_copy_if_scattered(_argument(graph, op, at)) for at in _PRODUCTS[name])
    if name in ("convolution", "convolution_backward"):
        return _convolution(graph, op, kind)
    if name in ("_fft_r2c", "_fft_c2c", "_fft_c2r") and kind == "cuda":
        return _total(graph, op)  # cuFFT's scratch, and a copy of what the transform overwrites
    if kind == "cuda":
        return _cuda(graph, op, name)
    return _cpu(graph, op, name)


def _convolution(graph: Graph, op: Op, kind: str) -> int:
    """cuDNN on strided (NCHW) tensors: channels-last copies of arguments and results for its tensor-core kernels.
    oneDNN on CPU: blocked copies of both, and the result once more in the layout asked for; one-dimensional ones run as
    two-dimensional ones after another copy."""
    total = _total(graph, op)
    if kind == "cuda":
        return total
    return 2 * total if len(graph.values[op.reads[0]].type.shape) == 3 else total + sum(_written(graph, op))


def _cuda(graph: Graph, op: Op, name: str) -> int:
    read = [graph.values[v].type for v in op.reads]
    if name in ("embedding_dense_backward", "index_put", "_unsafe_index_put", "_index_put_impl"):
        return _SORT_BYTES * sum(t.numel for t in read if t.dtype in ("i64", "i32"))
    if name in ("sort", "topk", "unique_dim", "_unique2", "argsort"):
        return _SORT_BYTES * read[0].numel
    if name == "native_layer_norm_backward":  # partial sums of the two parameter gradients, in float32
        return 2 * 4 * 128 * read[0].shape[-1]
    if name.startswith("_scaled_dot_product") and name.endswith("_backward"):
        # gradient of the query in float32 with its length rounded up to 128, and the row sums; key and value gradients
        # per query head where heads share them
        query, key = _argument(graph, op, 1), _argument(graph, op, 2)
        if query is None or key is None:
            return 0
        rows = prod(query.shape[:-2]) * (-(-query.shape[-2] // 128) * 128)
        shared = 0 if query.shape[1] == key.shape[1] else 2 * _bytes(key) * (query.shape[1] // max(1, key.shape[1]))
        return rows * (query.shape[-1] + 2) * 4 + shared
    if name in ("cumsum", "cumprod", "logcumsumexp"):
        return 1 << 16
    return 0


def _cpu(graph: Graph, op: Op, name: str) -> int:
    read = [graph.values[v].type for v in op.reads]
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        return _cpu_attention(graph, op, name.endswith("_backward"))
    if name in ("native_dropout", "native_dropout_backward"):  # the mask as floats
        return 4 * read[0].numel
    if name in ("native_batch_norm_backward", "batch_norm_backward"):
        return _bytes(read[0])
    if name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"):  # elements before the reduction
        return 2 * _bytes(read[0])
    if name == "_safe_softmax":  # which rows are masked altogether
        return 2 * read[0].numel
    if name in _CONTIGUOUS:
        return sum(_bytes(t) for t in read if t.strides is not None)
    return 0


def _cpu_attention(graph: Graph, op: Op, backward: bool) -> int:
    """Blocks of scores, by the kernel's rule for their height, for one thread; the backward pass holds two."""
    first = 1 if backward else 0
    query, key = _argument(graph, op, first), _argument(graph, op, first + 1)
    if query is None or key is None:
        return 0
    length, width = query.shape[-2:]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    block = rows * (min(512, key.shape[-2]) + 2 + width) * 4
    return 2 * block if backward else block


def _argument(graph: Graph, op: Op, position: int) -> TensorType | None:
    argument = op.args[position] if position < len(op.args) else None
    return graph.values[argument.value].type if isinstance(argument, Ref) else None


def _copy_if_scattered(type_: TensorType | None) -> int:
    """BLAS takes matrices with unit stride in one of the two last dimensions; others are copied first."""
    if type_ is None or type_.strides is None or len(type_.shape) < 2:
        return 0
    unit = any(stride == 1 or size == 1 for size, stride in zip(type_.shape[-2:], type_.strides[-2:], strict=True))
    return 0 if unit else _bytes(type_)


def _bytes(type_: TensorType) -> int:
    return type_.numel * DTYPES[type_.dtype][1]


def _written(graph: Graph, op: Op) -> list[int]:
    return [_bytes(graph.values[v].type) for v in op.writes if v is not None]


def _total(graph: Graph, op: Op) -> int:
    return sum(_bytes(graph.values[v].type) for v in op.reads) + sum(_written(graph, op))
