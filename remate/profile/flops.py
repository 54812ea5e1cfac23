"""Arithmetic of an operation, from the shapes of its arguments. Does not require torch."""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from remate_runtime.flat_step import Graph, Op, Ref
from remate_runtime.format import TensorType

# Operations per element of the largest output (or argument, for reductions), as instructions of vector units.
TRANSCENDENTAL = 15
RANDOM = 60
_TRANSCENDENTAL_NAMES = frozenset(
    """exp exp2 expm1 log log1p log2 log10 pow tanh sigmoid silu gelu mish erf erfc erfinv sin cos tan atan atan2
    softplus logsumexp hardswish log_sigmoid_forward log_sigmoid_backward silu_backward gelu_backward mish_backward
    _softmax _log_softmax _safe_softmax _log_softmax_backward_data softplus_backward elu elu_backward
    linalg_vector_norm logcumsumexp digamma lgamma sinh cosh""".split()
)


# These read only as much of their first argument as they write.
GATHERING = frozenset("embedding index _unsafe_index gather index_select masked_select take".split())


def matrix_flops(graph: Graph, op: Op) -> float:
    """Return the floating-point operations of matrix products, convolutions, fused attention and Fourier transforms;
    else 0."""
    count = _MATRIX.get(op.op)
    return float(count(graph, op)) if count is not None else 0.0


def vector_flops(graph: Graph, op: Op) -> float:
    """Return the floating-point operations of elementwise and reduction arithmetic."""
    if op.op in _MATRIX:
        return 0.0
    name = op.op.split(".")[1]
    touched = op.writes if name in GATHERING else (*op.reads, *op.writes)
    elements = max((graph.values[v].type.numel for v in touched if v is not None), default=0)
    per_element = RANDOM if op.random else TRANSCENDENTAL if name in _TRANSCENDENTAL_NAMES else 1
    return float(elements * per_element)


def _types(graph: Graph, op: Op) -> list[TensorType | None]:
    """Return the types of the positional arguments; None for those that are no tensor."""
    return [graph.values[a.value].type if isinstance(a, Ref) else None for a in op.args]


def _complex(*types: TensorType | None) -> int:
    """Return 4 for complex types, because a complex product takes four real ones; else 1."""
    return 4 if any(t is not None and t.dtype.startswith("c") for t in types) else 1


def _product(first: int) -> Callable[[Graph, Op], float]:
    """Return 2·(rows of a)·(columns of b)·(inner) for operators with factors at `first` and the next position."""

    def count(graph: Graph, op: Op) -> float:
        types = _types(graph, op)
        a, b = types[first], types[first + 1]
        if a is None or b is None:
            return 0.0
        columns = b.shape[-1] if len(b.shape) > 1 else 1
        return 2.0 * _complex(a, b) * a.numel * columns

    return count


def _linear(graph: Graph, op: Op) -> float:
    types = _types(graph, op)
    x, weight = types[0], types[1]
    return 2.0 * x.numel * weight.shape[0] * _complex(x) if x is not None and weight is not None else 0.0


def _convolution(graph: Graph, op: Op) -> float:
    types = _types(graph, op)
    return _one_convolution(graph.values[_first_output(op)].type, types[0], types[1], bool(op.args[6]))


def _convolution_backward(graph: Graph, op: Op) -> float:
    """Each of the gradients of input and weight takes as much as the forward."""
    types = _types(graph, op)
    wanted = sum(map(bool, op.args[10][:2]))
    return wanted * _one_convolution(types[0], types[1], types[2], bool(op.args[7]))


def _one_convolution(
    output: TensorType | None, x: TensorType | None, weight: TensorType | None, transposed: bool
) -> float:
    if output is None or x is None or weight is None:
        return 0.0
    moved = x.numel if transposed else output.numel
    return 2.0 * moved * prod(weight.shape[1:]) * _complex(x)


def _attention(query: int, causal: int, products: float) -> Callable[[Graph, Op], float]:
    """Count `products` matrix products of (length × length × head width); a causal mask halves them.

    Args:
        query: Position of the query, before key and value.
        causal: Position of `is_causal`.
        products: Number of products.
    """

    def count(graph: Graph, op: Op) -> float:
        types = _types(graph, op)
        q, k = types[query], types[query + 1]
        if q is None or k is None:
            return 0.0
        half = 0.5 if len(op.args) > causal and op.args[causal] is True else 1.0
        return half * products * 2.0 * q.numel * k.shape[-2]

    return count


def _fourier(graph: Graph, op: Op) -> float:
    """Count 5·n·log2(n) per transform of n complex points, half of that for real ones."""
    types = _types(graph, op)
    output = graph.values[_first_output(op)].type
    if types[0] is None:
        return 0.0
    larger = max((types[0], output), key=lambda t: t.numel)
    dimensions: tuple[int, ...] = op.args[1]
    points = prod(larger.shape[d] for d in dimensions)
    return (5.0 if op.op == "aten._fft_c2c" else 2.5) * larger.numel * log2(max(2, points))


def _lstm(products: int) -> Callable[[Graph, Op], float]:
    """Count the weights' products with inputs and hidden states of all time steps, `products` times."""

    def count(graph: Graph, op: Op) -> float:
        types = _types(graph, op)
        x, *weights = types[:3]
        rows = prod(x.shape[:-1]) if x is not None else 0
        return products * sum(2.0 * rows * weight.numel for weight in weights if weight is not None)

    return count


def _first_output(op: Op) -> int:
    return next(value for value in op.writes if value is not None)


_MATRIX: dict[str, Callable[[Graph, Op], float]] = {
    "aten.mm": _product(0),
    "aten.bmm": _product(0),
    "aten.mv": _product(0),
    "aten.dot": _product(0),
    "aten.addmm": _product(1),
    "aten.addmv": _product(1),
    "aten.baddbmm": _product(1),
    "aten.addbmm": _product(1),
    "aten._addmm_activation": _product(1),
    "aten._scaled_mm": _product(0),
    "aten._int_mm": _product(0),
    "aten.matmul": _product(0),
    "aten.linear": _linear,
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    # forward: query·key and weights·value; backward: four for the gradients of those, and query·key again
    "aten._scaled_dot_product_flash_attention": _attention(0, 4, 2),
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention(0, 4, 2),
    "aten._scaled_dot_product_efficient_attention": _attention(0, 6, 2),
    "aten._scaled_dot_product_cudnn_attention": _attention(0, 6, 2),
    "aten._scaled_dot_product_flash_attention_backward": _attention(1, 11, 5),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 7, 5),
    "aten._scaled_dot_product_efficient_attention_backward": _attention(1, 11, 5),
    "aten._scaled_dot_product_cudnn_attention_backward": _attention(1, 14, 5),
    "aten.mkldnn_rnn_layer": _lstm(1),
    "aten.mkldnn_rnn_layer_backward": _lstm(2),  # gradients of weights, and of inputs and states
    "aten._fft_c2c": _fourier,
    "aten._fft_r2c": _fourier,
    "aten._fft_c2r": _fourier,
}
