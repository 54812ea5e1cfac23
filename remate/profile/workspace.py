"""Bytes that an operation allocates and frees beyond its outputs, where no device is there to measure. Needs no torch.

The rules are upper bounds of what was measured (with one thread on the CPU): a plan made with them should not run out of
memory on the device. What is not listed needs none.
"""

from __future__ import annotations

from math import prod

from remate_runtime.format import DTYPES, TensorType, contiguous
from remate_runtime.step import Graph, Number, Op, Ref

_SORT_BYTES = 48  # per index: keys and positions of a radix sort, each twice, and the segments found in them
# These take contiguous arguments and copy others first (on CPU).
_CONTIGUOUS = frozenset(
    """native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward embedding _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data embedding_dense_backward cumsum max_pool2d_with_indices
    max_pool2d_with_indices_backward""".split()
)
_BLOCK = 16  # channels that oneDNN keeps together
_PARTIAL_SUMS = 258  # of a depthwise weight's gradient
_CONVOLUTION_SCRATCH = 1 << 16
_SCALARS = 16  # numbers that become tensors of one element
_INTERMEDIATE = frozenset("roll repeat histc sort cumsum floor_divide".split())  # made up of others, or cast first
_LSTM_SCRATCH = 1 << 15  # pages that oneDNN begins buffers on
_LSTM_PADDING = {4: 32, 2: 96}  # elements that it may add to a row, by their size: blocks of bfloat16 are larger
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2)}


def workspace(graph: Graph, op: Op, kind: str) -> int:
    """kind: of the device, "cpu" or "cuda"."""
    name = op.op.split(".")[1]
    if name in _PRODUCTS:
        return sum(_copy_if_scattered(_argument(graph, op, at)) for at in _PRODUCTS[name])
    if name in ("convolution", "convolution_backward") and kind == "cuda":
        return _total(graph, op)  # channels-last copies of strided tensors for cuDNN's tensor-core kernels
    if name in ("_fft_r2c", "_fft_c2c", "_fft_c2r") and kind == "cuda":
        return _total(graph, op)  # cuFFT's scratch, and a copy of what the transform overwrites
    if kind == "cuda":
        return _cuda(graph, op, name)
    return _cpu(graph, op, name) + (_SCALARS if name == "mean" or _has_number(op) else 0)


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
    if name in ("convolution", "convolution_backward"):
        return _cpu_convolution(graph, op, name == "convolution_backward")
    if name.startswith("mkldnn_rnn_layer"):
        return _cpu_lstm(graph, op, name.endswith("_backward"))
    if name in ("native_dropout", "native_dropout_backward"):  # the mask as floats
        return 4 * read[0].numel
    if name == "_native_batch_norm_legit_functional":  # copies of the running statistics, and sums of matrices
        running = _argument(graph, op, 3)
        return 3 * _bytes(running) if running is not None else 0
    if name in ("native_batch_norm_backward", "batch_norm_backward"):
        return _bytes(read[0])
    if name == "native_layer_norm_backward":  # partial sums of the two parameter gradients
        return _contiguous_copies(read) + 8 * read[0].shape[-1]
    if name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"):  # elements before the reduction
        return 2 * _bytes(read[0]) + 8
    if name == "binary_cross_entropy_with_logits":
        return 4 * _bytes(read[0]) + 16
    if name == "_safe_softmax":  # which rows are masked altogether
        return 2 * read[0].numel
    if name in _INTERMEDIATE:
        return _total(graph, op)
    if name == "gelu_backward" or name.startswith("upsample_"):
        return 2 * _total(graph, op) if _contiguous_copies(read) else 0  # copies of scattered arguments and results
    if name in _CONTIGUOUS:
        return _contiguous_copies(read)
    return 0


def _contiguous_copies(read: list[TensorType]) -> int:
    return sum(_bytes(t) for t in read if t.strides is not None)


def _has_number(op: Op) -> bool:
    """Numbers among tensors become tensors of one element."""
    return any(isinstance(argument, int | float | Number) for argument in (*op.args, *op.kwargs.values()))


def _cpu_convolution(graph: Graph, op: Op, backward: bool) -> int:
    """oneDNN: copies of images in blocks of 16 channels, and the results once more in the layout asked for; copies of the
    weights, padded too; partial sums of the weights' gradient, many where each channel is by itself. PyTorch's own kernel,
    which runs single images and some groups: the patches of one image, side by side."""
    images = [_argument(graph, op, at) for at in ((0, 1) if backward else (0,))]
    weight = _argument(graph, op, 2 if backward else 1)
    if weight is None or None in images:
        return 2 * _total(graph, op)
    made = [graph.values[v].type for v in op.writes if v is not None]
    blocked = sum(_blocked(t) for t in (*images, *made) if t is not None and len(t.shape) == len(weight.shape) > 2)
    groups = op.args[9 if backward else 8]
    alone = backward and weight.shape[1] == 1 and groups == weight.shape[0]
    copies = 2 * _padded_weight(weight) + (_PARTIAL_SUMS * _bytes(weight) if alone else _padded_weight(weight))
    found = 2 * blocked + copies + _CONVOLUTION_SCRATCH
    if len(weight.shape) == 5:
        found += found // 4
    image = images[-1]
    if image is not None and (image.shape[0] == 1 or (groups != 1 and groups != weight.shape[0])):
        out = images[0] if backward else made[0]
        found += image.shape[1] * prod(weight.shape[2:]) * prod(out.shape[2:]) * DTYPES[weight.dtype][1] if out else 0
    return found


def _cpu_lstm(graph: Graph, op: Op, backward: bool) -> int:
    """oneDNN: copies of the weights in another layout and the sum of the biases; gates of all time steps in single precision. The
    backward pass: gradients of weights in that layout, of one step's states, and of the results, in single precision."""
    found = [_argument(graph, op, at) for at in (0, 1, 2, 5)]
    if None in found or any(len(t.shape) < 2 for t in found if t is not None):
        return 2 * _total(graph, op)
    layer_input, *weights, state = (t for t in found if t is not None)
    (time, batch), hidden, size = layer_input.shape[:2], state.shape[-1], DTYPES[layer_input.dtype][1]
    padding = _LSTM_PADDING.get(size, 96)
    inner = sum(weight.shape[1] + padding for weight in weights)
    gates = weights[0].shape[0]
    copied = (gates + padding) * (inner * size + time * batch * 4) + 16 * gates + _LSTM_SCRATCH
    if not backward:
        return copied
    states = 6 * batch * (max(layer_input.shape[-1], hidden) + padding) * 4
    results = time * batch * hidden * 4 if size < 4 else 0
    copies = _contiguous_copies([graph.values[v].type for v in op.reads])
    return copied + (gates + padding) * inner * 4 + 16 * gates + states + results + copies


def _blocked(type_: TensorType) -> int:
    """Bytes of images with their channels rounded up to a block."""
    channels = type_.shape[1]
    return _bytes(type_) // max(1, channels) * (-(-channels // _BLOCK) * _BLOCK)


def _padded_weight(type_: TensorType) -> int:
    one, other = (-(-size // _BLOCK) * _BLOCK for size in type_.shape[:2])
    return one * other * prod(type_.shape[2:]) * DTYPES[type_.dtype][1]


def _cpu_attention(graph: Graph, op: Op, backward: bool) -> int:
    """Blocks of scores, by the kernel's rule for their height, for one thread; the backward pass holds two, and a copy of a gradient
    whose heads do not lie behind each other at each place."""
    first = 1 if backward else 0
    query, key = _argument(graph, op, first), _argument(graph, op, first + 1)
    if query is None or key is None:
        return 0
    length, width = query.shape[-2:]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    block = rows * (min(512, key.shape[-2]) + 2 + width) * 4
    if not backward:
        return block
    grad = _argument(graph, op, 0)
    return 2 * block + (0 if grad is None or _heads_inside(grad) else _bytes(grad))


def _heads_inside(type_: TensorType) -> bool:
    """Whether a tensor of shape (batch, heads, length, width) is without gaps once length and heads change places."""
    if type_.strides is None:
        return 1 in type_.shape[1:3]
    shape, strides = (tuple(one[axis] for axis in (0, 2, 1, 3)) for one in (type_.shape, type_.strides))
    return contiguous(shape, strides)


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
