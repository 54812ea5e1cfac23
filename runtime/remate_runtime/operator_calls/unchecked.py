"""Operators whose kernels trust their arguments (`paired`, `literals` in the operator tables).

The check is whether the arguments in a file are what a forward operator returned or would return. Kernels of backward
operators follow indices and sizes of saved tensors without checking: out of range they crash, or write where they must
not. Indices from a forward kernel are in range for all data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch

from ..flat_step.graph import Graph, Op, Ref
from ..flat_step.known_results import result_shapes, typed
from ..format.json_values import is_array, is_tuple
from ..format.tensor_type import TensorType
from ..operators.tables import LITERALS, PAIRED, PairedOperator
from ..torch_private.operators import OpOverload, schema_of
from .inferred import infer, signature
from .overloads import overload

_ATTENTION = "aten._scaled_dot_product_"
_FFT = "aten._fft_c2r"
_WEIGHT_NORM = "aten._weight_norm_interface"
_RESIZED = ("aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa", "aten._upsample_lanczos2d_aa")
_POOLED = ("aten._adaptive_avg_pool", "aten.adaptive_max_pool")
_BATCH_NORM = "aten._batch_norm_with_update_functional"
_BY_SHAPES = (_ATTENTION, _FFT, _WEIGHT_NORM, _BATCH_NORM, *_RESIZED, *_POOLED)
Arguments = Mapping[str, Any]


def may_trust(name: str) -> bool:
    """Return whether kernels of this operator trust some arguments."""
    return name in PAIRED or name in LITERALS or name.startswith(_BY_SHAPES)


def trusts(graph: Graph, op: Op, live: OpOverload, known: dict[Any, str], checked: bool = False) -> str:
    """Return why the operation needs a permission; "" if it needs none.

    Args:
        graph: The step.
        op: The operation.
        live: Its operator.
        known: Results for other operations of the graph.
        checked: The operation has been checked at another size.
    """
    if not may_trust(op.op):
        return ""
    pair = PAIRED.get(op.op)
    # The result depends on the operation that produced the arguments, not only on types.
    if pair is not None and pair.outputs:
        return _judge(graph, op, live, pair, checked)
    key = signature(graph, op)
    if key not in known:
        known[key] = _judge(graph, op, live, pair, checked)
    return known[key]


def _judge(graph: Graph, op: Op, live: OpOverload, pair: PairedOperator | None, checked: bool) -> str:
    given = _arguments(op, live)
    for name, value in LITERALS.get(op.op, {}).items():
        if given.get(name) is not value:
            return f"with `{name}` other than {value} its kernel follows indices without checking them"
    if op.op.startswith(_ATTENTION) and (wrong := _attention(graph, given)):
        return wrong
    if op.op == _FFT:
        return _half_of_spectrum(graph, given)
    if op.op.startswith(_WEIGHT_NORM):
        return _weight_norm(graph, given)
    if op.op == _BATCH_NORM:
        return _batch_norm(graph, given)
    if op.op.startswith(_RESIZED):
        return _resized(graph, given)
    if op.op.startswith(_POOLED) and 0 in _tuple(given.get("output_size")):
        return "with an output size of 0 its kernel visits every position of the other sizes"
    if pair is None:
        return ""
    wrong = _sizes(graph, given, pair)
    return wrong or (_made(graph, given, pair) if pair.outputs else _like(graph, given, pair, checked))


def _arguments(op: Op, live: OpOverload) -> dict[str, Any]:
    """Return arguments by name, with the defaults of the schema; the first one also as `grad`."""
    arguments = schema_of(live).arguments
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= {a.name: value for a, value in zip(arguments, op.args, strict=False)} | op.kwargs
    return {"grad": given.get(arguments[0].name)} | given


def _made(graph: Graph, arguments: Arguments, pair: PairedOperator) -> str:
    """Check that the saved arguments are outputs of a forward operation with the same arguments."""
    saved: dict[str, Ref] = {name: arguments[name] for name in pair.outputs if isinstance(arguments.get(name), Ref)}
    if not saved or any(not isinstance(arguments.get(name), Ref | None) for name in pair.outputs):
        return f"none of {_listed(pair.outputs)} is what {_listed(pair.by)} made"
    producers = {graph.values[value.value].producer for value in saved.values()}
    forward = graph.operations[next(iter(producers))] if len(producers) == 1 and min(producers) >= 0 else None
    if forward is None or forward.op not in pair.by:
        return f"{_listed(saved)} must be what {_listed(pair.by)} made"
    for name, value in saved.items():
        if pair.outputs[name] >= len(forward.writes) or forward.writes[pair.outputs[name]] != value.value:
            return f"`{name}` must be output {pair.outputs[name]} of {forward.id!r}"
    had = _arguments(forward, overload(forward.op, (forward.op,)))
    for name in pair.same:
        there = pair.renamed.get(name, name)
        wanted = pair.by[forward.op].get(name, had.get(there))
        if arguments.get(name) is not None and not _same(graph, arguments[name], wanted):
            return f"`{name}` must be as in {forward.id!r}, whose outputs it reads"
    for name, at in pair.like.items():
        value = forward.writes[at]
        if arguments.get(name) is None:  # an output without a gradient; torch refuses it if it needs one
            continue
        if value is None or _shape(graph, arguments[name]) != graph.values[value].type.shape:
            return f"`{name}` must have the shape of output {at} of {forward.id!r}"
    return ""


def _like(graph: Graph, arguments: Arguments, pair: PairedOperator, checked: bool) -> str:
    """Check that the arguments have the shapes that the forward operator would return."""
    ((name, literals),) = pair.by.items()
    args: dict[str, Any] = {pair.renamed.get(key, key): arguments.get(key) for key in pair.same} | literals
    for key, (of, count) in pair.last.items():
        shape = _shape(graph, arguments.get(of))
        if shape is None or len(shape) < count:
            return f"`{of}` must have the shape that {name} gives"
        args[key] = shape[-count:]
    outputs = _shapes(graph, name, args, checked)
    if not pair.empty and any(0 in (_shape(graph, argument) or ()) for argument in arguments.values()):
        return f"without elements its arguments are not what {name} gives"
    for key, at in pair.like.items():
        if at >= len(outputs) or _shape(graph, arguments.get(key)) != outputs[at]:
            return f"`{key}` must have the shape that {name} gives for the other arguments"
    return ""


def _shapes(graph: Graph, name: str, args: Mapping[str, Any], checked: bool) -> Sequence[tuple[int, ...] | None]:
    """Return the shapes of the results of an operator; none if torch refuses the arguments."""
    live = overload(name)
    ordered = tuple(args[a.name] for a in schema_of(live).arguments if a.name in args)
    if checked and (known := result_shapes(name, typed(graph, ordered))) is not None:
        return known
    try:
        inferred = infer(graph, ordered, {}, live)
    except Exception:  # torch may raise any error for arguments that do not fit
        return ()
    return [tuple(each.shape) for each in ([inferred] if isinstance(inferred, torch.Tensor) else inferred)]


def _sizes(graph: Graph, given: Arguments, pair: PairedOperator) -> str:
    for name, (of, dim) in pair.sizes.items():
        shape = _shape(graph, given.get(of))
        if shape is None or dim >= len(shape) or given.get(name) != shape[dim]:
            return f"`{name}` must be size {dim} of `{of}`"
    return ""


def _attention(graph: Graph, arguments: Arguments) -> str:
    """Check attention: its kernels take batch, heads and lengths from the query only, and divide by them."""
    query, key, value = (_shape(graph, arguments.get(name)) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or {len(query), len(key), len(value)} != {4}:
        return "query, key and value must have four dimensions"
    heads = query[1] % max(1, key[1]) == 0
    if query[0] != key[0] or key[:3] != value[:3] or query[3] != key[3] or not heads or 0 in (*query, *key, *value):
        return "query, key and value must agree in batch, heads, length and width, none of them empty"
    mask = _shape(graph, arguments.get("attn_mask", arguments.get("attn_bias")))
    full = (*query[:2], query[2], key[2])
    if mask is not None and (
        len(mask) > 4 or any(m not in (1, n) for m, n in zip(mask[::-1], full[::-1], strict=False))
    ):
        return "the mask must broadcast to the scores"
    return ""


def _half_of_spectrum(graph: Graph, arguments: Arguments) -> str:
    """Check that the input has as many elements as the kernel reads for the length of the result."""
    shape, dims, length = (
        _shape(graph, arguments.get("self")) or (),
        arguments.get("dim"),
        arguments.get("last_dim_size"),
    )
    last = dims[-1] if is_tuple(dims) and dims else None
    size = shape[last] if isinstance(last, int) and -len(shape) <= last < len(shape) else None
    if size is None or not isinstance(length, int) or size != length // 2 + 1:
        return "the last dimension must have `last_dim_size` // 2 + 1 elements"
    return ""


def _weight_norm(graph: Graph, arguments: Arguments) -> str:
    """Check weight norms: kernels take all sizes from the weight, divide by them, and write norms in the magnitudes'
    layout."""
    weight = _shape(graph, arguments.get("v", arguments.get("saved_v"))) or ()
    dim = arguments.get("dim")
    if 0 in weight or not weight or dim not in (0, len(weight) - 1):
        return "the weight must have elements, and `dim` be its first or last dimension"
    norms = tuple(size if at == dim else 1 for at, size in enumerate(weight))
    if any(_shape(graph, arguments[name]) != norms for name in ("g", "saved_g", "saved_norms") if name in arguments):
        return "magnitudes and norms must have the weight's size in `dim`, and 1 in the others"
    if any(_strides(graph, arguments.get(name)) is not None for name in ("g", "saved_g", "saved_norms")):
        return "magnitudes and norms must be contiguous"
    if "grad_w" in arguments and _shape(graph, arguments["grad_w"]) != weight:
        return "`grad_w` must have the shape of the weight"
    return ""


def _batch_norm(graph: Graph, arguments: Arguments) -> str:
    """Check batch norm: its kernel reads a weight, a bias and statistics for each channel of the input."""
    channels = (_shape(graph, arguments.get("input")) or ())[1:2]
    for name in ("weight", "bias", "running_mean", "running_var"):
        if arguments.get(name) is not None and _shape(graph, arguments[name]) != channels:
            return f"`{name}` must have the size of the input's second dimension"
    return ""


def _resized(graph: Graph, arguments: Arguments) -> str:
    """Check factors: kernels compute addresses from them, whatever the sizes are."""
    before = arguments.get("input_size") or _shape(graph, arguments.get("self")) or ()
    after = arguments.get("output_size")
    if not _are_sizes(before, 4) or not _are_sizes(after, 2):
        return "sizes before and after must be those of images"
    for name, size, wanted in zip(("scales_h", "scales_w"), before[2:], after, strict=True):
        factor = arguments.get(name)
        if factor is not None and not (isinstance(factor, int | float) and wanted <= size * factor < wanted + 1):
            return f"`{name}` must be what makes {size} into {wanted}, or null"
    return ""


def _are_sizes(argument: object, count: int) -> TypeGuard[tuple[int, ...]]:
    return is_tuple(argument) and len(argument) == count and all(isinstance(size, int) for size in argument)


def _same(graph: Graph, left: object, right: object) -> bool:
    if isinstance(left, Ref) and isinstance(right, Ref):
        a, b = graph.values[left.value].type, graph.values[right.value].type
        return (a.dtype, a.shape) == (b.dtype, b.shape)
    return _plain(left) == _plain(right)


def _plain(literal: object) -> Any:
    """Expand `2`, which is short for `(2, 2)` and for the schema's default."""
    if is_array(literal):
        return literal[0] if literal and all(item == literal[0] for item in literal) else tuple(literal)
    return literal


def _shape(graph: Graph, argument: object) -> tuple[int, ...] | None:
    kind: TensorType | None = graph.values[argument.value].type if isinstance(argument, Ref) else None
    return None if kind is None else kind.shape


def _tuple(argument: object) -> tuple[Any, ...]:
    return argument if is_tuple(argument) else ()


def _strides(graph: Graph, argument: object) -> tuple[int, ...] | None:
    """Return strides; None if the argument is contiguous or not a tensor."""
    return graph.values[argument.value].type.strides if isinstance(argument, Ref) else None


def _listed(names: Any) -> str:
    return ", ".join(names)
