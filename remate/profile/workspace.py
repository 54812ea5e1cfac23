"""Estimates the bytes that an operation allocates and frees beyond its outputs without a device. Does not require
torch.

The rules are upper bounds of measurements (with one thread on the CPU), so that a plan should not run out of memory on
the device. Operators without a rule need none.
"""

from __future__ import annotations

from math import prod

from remate_runtime.devices.onednn_rows import row_elements
from remate_runtime.flat_step import Graph, Number, Op, Ref
from remate_runtime.format import DTYPES, TensorType, contiguous

_SORT_BYTES = 48  # per index: keys and positions of a radix sort, twice each, and the resulting segments
# These copy non-contiguous arguments first (on CPU).
_CONTIGUOUS = frozenset(
    """native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward embedding _softmax
    _log_softmax
    _softmax_backward_data _log_softmax_backward_data embedding_dense_backward cumsum max_pool2d_with_indices
    max_pool2d_with_indices_backward""".split()
)
_BLOCK = 16  # block of channels in oneDNN
_PARTIAL_SUMS = 258  # of a depthwise weight's gradient
_CONVOLUTION_SCRATCH = 1 << 16
_SCALARS = 16  # numbers that become one-element tensors
_INTERMEDIATE = frozenset("roll repeat histc sort cumsum floor_divide".split())  # composed of others, or cast first
_LSTM_SCRATCH = 5 * 4096  # page alignment, and small buffers
_LSTM_MANY = 128  # rows from which on a forward computes products by time step
_LSTM_TRANSPOSED = 3 * 2048  # of a backward in bfloat16
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2)}
_ROWS, _COLUMNS, _DEPTH = 256, 64, 256  # blocks of a bfloat16 product (oneDNN)
_PROMOTING = frozenset("add sub rsub mul div pow maximum minimum fmax fmin where atan2 fmod remainder xlogy".split())
_COMPARING = frozenset("eq ne lt le gt ge".split())
_BY_RANGE = ("bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128")


def workspace(graph: Graph, op: Op, kind: str) -> int:
    """Return the workspace in bytes. kind: of the device, "cpu" or "cuda"."""
    name = op.op.split(".")[1]
    if name in _PRODUCTS:
        factors = [_argument(graph, op, at) for at in _PRODUCTS[name]]
        return sum(map(_copy_if_scattered, factors)) + (_cpu_product(*factors) if kind == "cpu" else 0)
    if name == "unfold_backward":
        return _index_of_windows(op)
    if name in ("convolution", "convolution_backward") and kind == "cuda":
        return _total(graph, op)  # channels-last copies of strided tensors for cuDNN's tensor-core kernels
    if name in ("_fft_r2c", "_fft_c2c", "_fft_c2r") and kind == "cuda":
        return _total(graph, op)  # cuFFT's scratch memory, and a copy of what the transform overwrites
    if kind == "cuda":
        return _cuda(graph, op, name)
    return _cpu(graph, op, name) + (_SCALARS if name == "mean" or _has_number(op) else 0)


def _index_of_windows(op: Op) -> int:
    """Return the bytes of the index of the elements in overlapping windows."""
    shape: tuple[int, ...] | Number
    shape, axis, size, step = op.args[1:5]
    if not (isinstance(shape, tuple) and isinstance(axis, int) and isinstance(size, int) and isinstance(step, int)):
        return 0
    return 8 * int(shape[axis]) if shape and step < size else 0


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
        # per query head if heads share them
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
    if name == "mean" or op.op == "aten.sum.dim_IntList":  # low precision is first converted to single precision
        low = read[0].numel if DTYPES[read[0].dtype][1] == 2 else 0
        return 4 * (low + sum(graph.values[v].type.numel for v in op.writes if v is not None)) if low else 0
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
    if name == "_safe_softmax":  # a mask of fully masked rows
        return 2 * read[0].numel
    if name in _PROMOTING or name in _COMPARING:
        return _casts(graph, op, name) + (_total(graph, op) if name in _INTERMEDIATE else 0)
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
    """Numbers among tensors become one-element tensors."""
    return any(isinstance(argument, int | float | Number) for argument in (*op.args, *op.kwargs.values()))


def _casts(graph: Graph, op: Op, name: str) -> int:
    """Return the bytes of arguments' copies in their common type."""
    read = [graph.values[v].type for v in (op.reads[1:] if name == "where" else op.reads)]
    written = [graph.values[v].type.dtype for v in op.writes if v is not None]
    kinds = [t.dtype for t in read] if name in _COMPARING else written
    common = max((kind for kind in kinds if kind in _BY_RANGE), key=_BY_RANGE.index, default="")
    return sum(t.numel * DTYPES[common][1] for t in read if common and t.dtype != common)


def _cpu_product(first: TensorType | None, second: TensorType | None) -> int:
    """Return the workspace of a bfloat16 product if the CPU has instructions for it.

    It consists of sums of a block in single precision, and a copy of the corresponding part of the second factor; also
    of the first factor if its rows are not adjacent, three times if they are long.
    """
    if first is None or second is None or first.dtype != "bf16" or len(first.shape) < 2:
        return 0
    height, depth = first.shape[-2:]
    rows, deep = min(height, _ROWS), -(-depth // _COLUMNS) * _COLUMNS
    block = 1024 + rows * _COLUMNS * 4 + deep * _COLUMNS * 2
    if depth > 1 and (first.strides is None or first.strides[-1] == 1):
        return block
    times = 3 if depth > _DEPTH else 1
    return block + times * (-(-rows // 16) * 16) * deep * 2 + (4096 if times == 1 else 4096 + deep * _COLUMNS * 2)


def _cpu_convolution(graph: Graph, op: Op, backward: bool) -> int:
    """Return the workspace of a convolution.

    oneDNN: copies of images in blocks of 16 channels, and the results in the requested layout; padded copies of the
    weights; partial sums of the weights' gradient, many for depthwise weights. PyTorch's own kernel, for single images
    and some groups, and for low precision on processors without instructions for it: the patches of an image side by
    side, in the latter case of all images. Without AVX-512, oneDNN has the patches of an image for dilated weights.
    """
    images = [_argument(graph, op, at) for at in ((0, 1) if backward else (0,))]
    weight = _argument(graph, op, 2 if backward else 1)
    if weight is None or None in images:
        return 2 * _total(graph, op)
    results = [graph.values[v].type for v in op.writes if v is not None]
    blocked = sum(_blocked(t) for t in (*images, *results) if t is not None and len(t.shape) == len(weight.shape) > 2)
    groups = op.args[9 if backward else 8]
    alone = backward and weight.shape[1] == 1 and groups == weight.shape[0]
    copies = 2 * _padded_weight(weight) + (_PARTIAL_SUMS * _channelwise(weight) if alone else _padded_weight(weight))
    if backward and DTYPES[weight.dtype][1] == 2 and op.args[6] != (1,) * (len(weight.shape) - 2):
        copies += 4 * _padded_weight(weight)  # gradients of dilated weights in single precision
    nbytes = 2 * blocked + copies + _CONVOLUTION_SCRATCH
    if len(weight.shape) == 5:
        nbytes += nbytes // 4
    dilation, transposed = op.args[6 if backward else 5], op.args[7 if backward else 6]
    whole = groups not in (1, weight.shape[0]) or dilation != (1,) * (len(weight.shape) - 2)
    return nbytes + _patches(images[-1], images[0] if backward else results[0], weight, whole, transposed)


def _patches(
    image: TensorType | None, out: TensorType | None, weight: TensorType, whole: bool, transposed: object
) -> int:
    if image is None or out is None:
        return 0
    image, out = (out, image) if transposed else (image, out)
    size = DTYPES[weight.dtype][1]
    patches = image.shape[1] * prod(weight.shape[2:]) * prod(out.shape[2:]) * size
    if size == 2:
        return image.shape[0] * patches
    return patches if image.shape[0] == 1 or whole else 0


def _cpu_lstm(graph: Graph, op: Op, backward: bool) -> int:
    """Return the workspace of an LSTM in oneDNN (`src/cpu/rnn/rnn_utils.hpp`).

    It consists of the sum of the biases, copies of the weights if their memory layout differs, states, and gates of a
    time step, or of all if they are a single product. Backward adds the gradients of weights in oneDNN's layout, and in
    bfloat16 those of results in single precision.
    """
    operands = [_argument(graph, op, at) for at in (0, 1, 2, 5)]
    if None in operands or any(len(t.shape) < 2 for t in operands if t is not None):
        return 2 * _total(graph, op)
    layer_input, *weights, state = (t for t in operands if t is not None)
    (time, batch), hidden, size = layer_input.shape[:2], state.shape[-1], DTYPES[layer_input.dtype][1]
    widths, gates, low = [weight.shape[1] for weight in weights], weights[0].shape[0], size < 4
    steps = time if (batch == 1 if low else backward or batch < _LSTM_MANY) else 1
    scratch = batch * (steps * row_elements(gates, 4) + 2 * row_elements(hidden, 4)) * 4 + gates * size + _LSTM_SCRATCH
    if not backward:
        blocks = sum(_even(width) for width in widths) * 4 * _blocks(hidden) * size
        return scratch + (blocks if low else sum(widths) * row_elements(gates, 4) * size)
    copies = _contiguous_copies([graph.values[v].type for v in op.reads])
    copies += scratch + sum(widths) * row_elements(gates, 4) * 4
    if not low:
        return copies + sum(
            gates * row_elements(width, 4) * size for width in widths if row_elements(width, 4) != width
        )
    blocks = 4 * _even(hidden) * sum(map(_blocks, widths)) * size
    return copies + blocks + (time + 2) * batch * hidden * 4 + 2 * batch * sum(widths) + _LSTM_TRANSPOSED


def _even(elements: int) -> int:
    return elements + elements % 2


def _blocks(elements: int) -> int:
    return -(-elements // 32) * 32


def _blocked(type_: TensorType) -> int:
    """Return the bytes of images with their channels rounded up to a block."""
    channels = type_.shape[1]
    return _bytes(type_) // max(1, channels) * (-(-channels // _BLOCK) * _BLOCK)


def _padded_weight(type_: TensorType) -> int:
    rows, columns = (-(-size // _BLOCK) * _BLOCK for size in type_.shape[:2])
    return rows * columns * prod(type_.shape[2:]) * DTYPES[type_.dtype][1]


def _channelwise(type_: TensorType) -> int:
    """Return the bytes of a weight with one input channel, in single precision."""
    return -(-type_.shape[0] // _BLOCK) * _BLOCK * prod(type_.shape[2:]) * 4


def _cpu_attention(graph: Graph, op: Op, backward: bool) -> int:
    """Return the workspace of attention for one thread: blocks of scores, by the kernel's rule for their height.

    Backward holds two blocks, and a copy of a gradient whose heads are not adjacent at each position.
    """
    first = 1 if backward else 0
    query, key = _argument(graph, op, first), _argument(graph, op, first + 1)
    if query is None or key is None:
        return 0
    length, width = query.shape[-2:]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    part = min(512, key.shape[-2])
    block = rows * (part + 2 + width) * 4
    low = DTYPES[query.dtype][1] < 4
    if not backward:
        return block + (2 * rows * part if low else 0)
    grad = _argument(graph, op, 0)
    if low:
        block += 2 * rows * part + 6 * part * max(32, width) + 1024
    return 2 * block + (0 if grad is None or _heads_inside(grad) else _bytes(grad))


def _heads_inside(type_: TensorType) -> bool:
    """Return whether a tensor of shape (batch, heads, length, width) is contiguous with length and heads transposed."""
    if type_.strides is None:
        return 1 in type_.shape[1:3]
    shape, strides = (tuple(sequence[axis] for axis in (0, 2, 1, 3)) for sequence in (type_.shape, type_.strides))
    return contiguous(shape, strides)


def _argument(graph: Graph, op: Op, position: int) -> TensorType | None:
    argument = op.args[position] if position < len(op.args) else None
    return graph.values[argument.value].type if isinstance(argument, Ref) else None


def _copy_if_scattered(type_: TensorType | None) -> int:
    """Return the bytes of a copy for BLAS, which takes matrices with unit stride in one of the last two dimensions."""
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
