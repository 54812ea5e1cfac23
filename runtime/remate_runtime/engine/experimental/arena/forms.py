"""Operators that can write their results into existing memory with bitwise equal results.

Only operators are listed whose two forms share a kernel: torch derives the functional form of a *structured* operator
from the `out` form (`structured_delegate` in its native_functions.yaml), on every device. Most `out` forms of other
operators compute the result in new memory and copy it, which needs more memory. `tests/runtime/arena/test_forms.py`
compares each with its functional form bitwise.
"""

from __future__ import annotations

from typing import Any

import torch

from ....errors import RemateError
from ....flat_step.graph import Graph, Op
from ....format.json_values import is_array
from ....operator_calls.inferred import infer
from ....operator_calls.overloads import TORCH_DTYPES, laid_out
from ....torch_private.operators import OpOverload, function_of, schema_of
from ...eager.placed import PlacedForm

_aten = torch.ops.aten
_clamp_min, _copy = function_of(_aten.clamp_min.out), function_of(_aten.copy_.default)

STRUCTURED = frozenset(
    """
    acos acosh add.Tensor addcdiv addcmul addmm all.dim amax amin any.dim argmax argmin asin asinh atan atan2 atanh
    avg_pool2d
    avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm bitwise_and.Tensor bitwise_not bitwise_or.Tensor
    bitwise_xor.Tensor
    bmm cat ceil clamp clamp.Tensor clamp_max.Tensor clamp_min clamp_min.Tensor copysign.Tensor cos cosh cumprod cumsum
    digamma div.Tensor div.Tensor_mode elu elu_backward eq.Scalar eq.Tensor erf erfc erfinv exp exp2 expm1 floor fmax
    fmin
    fmod.Tensor frac gather ge.Scalar ge.Tensor gelu gelu_backward glu gt.Scalar gt.Tensor hardshrink
    hardshrink_backward
    hardsigmoid hardsigmoid_backward hypot index.Tensor isneginf isposinf le.Scalar le.Tensor leaky_relu
    leaky_relu_backward
    lerp.Scalar lerp.Tensor lgamma linalg_vector_norm log log10 log1p log2 logaddexp logaddexp2 logit_backward
    lt.Scalar lt.Tensor
    max_pool2d_with_indices max_pool2d_with_indices_backward maximum mean.dim minimum mish mm mul.Tensor ne.Scalar
    ne.Tensor neg pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal reflection_pad1d reflection_pad1d_backward
    remainder.Tensor replication_pad1d replication_pad1d_backward replication_pad2d round rsqrt scatter.src
    scatter.value
    scatter_add sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus softplus_backward
    softshrink softshrink_backward _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data sqrt
    sub.Tensor
    sum.dim_IntList tan tanh tanh_backward threshold threshold_backward tril triu trunc upsample_bicubic2d
    upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d
    upsample_linear1d_backward
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_trilinear3d
    upsample_trilinear3d_backward xlogy.Tensor
    """.split()
)


def _clamped(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return _clamp_min(self, 0, out=out)


def _copied(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return _copy(out, self)


# Operators that torch itself builds from a different operator, or from a copy.
MADE_OF = {
    "aten.relu": PlacedForm(_clamped),
    "aten.clone": PlacedForm(_copied, argument_count=1),
    "aten._to_copy": PlacedForm(_copied, argument_count=1),
    "aten.mul.Scalar": PlacedForm(function_of(_aten.mul.out)),
    "aten.add.Scalar": PlacedForm(function_of(_aten.add.out)),
    "aten.sub.Scalar": PlacedForm(function_of(_aten.sub.out)),
    "aten.div.Scalar": PlacedForm(function_of(_aten.div.out)),
    "aten.where.self": PlacedForm(function_of(_aten.where.self_out)),
    "aten.hardtanh": PlacedForm(function_of(_aten.hardtanh.out)),
    "aten.hardtanh_backward": PlacedForm(function_of(_aten.hardtanh_backward.grad_input), ("grad_input",)),
}


def form_of(name: str) -> PlacedForm | None:
    """Return how an operator writes into given tensors; None if it cannot."""
    if name in MADE_OF:
        return MADE_OF[name]
    space, _, short = name.partition(".")
    if space != "aten" or short not in STRUCTURED:
        return None
    packet, _, overload = short.partition(".")
    functional = getattr(getattr(_aten, packet), overload or "default")
    return _sibling(functional)


def _sibling(functional: OpOverload) -> PlacedForm | None:
    """Return the overload with the same arguments, and tensors to write its results into."""
    packet, own = functional.overloadpacket, schema_of(functional)
    wanted = [(a.name, str(a.type)) for a in own.arguments]
    for name in packet.overloads():
        schema = schema_of(getattr(packet, name))
        given = [
            a.name for a in schema.arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
        ]
        rest = [(a.name, str(a.type)) for a in schema.arguments if a.name not in given]
        if len(given) == len(own.returns) and rest == wanted:
            return PlacedForm(function_of(getattr(packet, name)), tuple(given))
    return None


def strides_of(graph: Graph, op: Op, live: OpOverload) -> list[tuple[int, ...]] | None:
    """Return the strides of an operator's results according to its meta kernel.

    None if they are unknown or differ from the file; then the operator allocates its results. A result on a different
    device than the arguments has no form either.
    """
    written = [value for value in op.writes if value is not None]
    types = [graph.values[value].type for value in (*op.reads, *written)]
    if len(written) != len(op.writes) or not written or len({type_.cpu for type_ in types}) > 1:
        return None
    try:
        inferred: Any = infer(graph, op.args, op.kwargs, live)
    except (RemateError, RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    results: list[torch.Tensor] = list(inferred) if is_array(inferred) else [inferred]
    for tensor, value in zip(results, written, strict=False):
        declared = graph.values[value].type
        if tensor.dtype is not TORCH_DTYPES[declared.dtype] or tuple(tensor.shape) != declared.shape:
            return None
        if not laid_out(tensor, declared) or tensor.is_conj() or tensor.is_neg():
            return None
    return [tensor.stride() for tensor in results] if len(results) == len(written) else None
