"""Shapes of the results of common operators, from those of their arguments. Does not require torch.

Types of a step are compared with those that torch infers. That takes half a millisecond for each operation, so at
further sizes of a step these rules decide where they can: element types are equal at all sizes of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from ..errors import ScheduleError
from ..format.tensor_type import DTYPES, TensorType
from ..operators.rows import ROWS
from .graph import Argument, Graph, Op, Ref
from .tile_types import as_view, same_layout

Shape = tuple[int, ...]
_Typed: TypeAlias = "TensorType | Argument | tuple[_Typed, ...]"  # an argument with types for values
_Shapes = Sequence[Shape | None] | None  # of results; None where the rule does not say


def as_known(graph: Graph, op: Op) -> bool:
    """Return whether the results are declared as torch infers them, if their element types are.

    False where no rule decides.
    """
    values = graph.values
    declared = [None if value is None else values[value].type for value in op.writes]
    args = typed(graph, op.args)
    if any(kind is not None and 0 in kind.shape for kind in (*_tensors(args), *declared)):
        return False
    if op.view:
        (kind,) = declared if len(declared) == 1 else (None,)
        return kind is not None and _is_view(op, args, kind)
    shapes = result_shapes(op.op, args)
    return shapes is not None and len(shapes) == len(declared) and all(map(_holds, declared, shapes))


def result_shapes(name: str, args: Sequence[Any]) -> _Shapes:
    """Return the shapes of the results of an operator; None where no rule decides, or where torch refuses arguments.

    Args:
        name: The operator, whose results are no views.
        args: Its positional arguments (`typed`). Keyword arguments do not matter for these operators.
    """
    rule = _RULES.get(name)
    try:
        return None if rule is None else rule(*args)
    except (TypeError, IndexError, ValueError, AttributeError, ArithmeticError):  # arguments of other kinds
        return None


def typed(graph: Graph, argument: Argument) -> Any:
    """Return an argument with types for values."""
    if isinstance(argument, Ref):
        return graph.values[argument.value].type
    return tuple(typed(graph, each) for each in argument) if isinstance(argument, tuple) else argument


def _tensors(args: Sequence[_Typed]) -> list[TensorType]:
    inside = [each for argument in args for each in (argument if isinstance(argument, tuple) else (argument,))]
    return [each for each in inside if isinstance(each, TensorType)]


def _holds(declared: TensorType | None, shape: Shape | None) -> bool:
    """Return whether a result of this shape, without gaps, is as declared and takes no more bytes."""
    if declared is None:
        return True
    if declared.shape != shape:
        return False
    return declared.strides is None or declared.numel * DTYPES[declared.dtype][1] <= declared.nbytes


def _axis(at: int, rank: int) -> int:
    if not -rank <= at < rank:
        raise IndexError
    return at % rank


# Views


def _is_view(op: Op, args: Sequence[Any], declared: TensorType) -> bool:
    rule = _VIEW_SHAPES.get(ROWS.views.get(op.op, ""))
    if rule is None or op.kwargs or not isinstance(args[0], TensorType):
        return False
    try:
        return rule(*args) == declared.shape and same_layout(as_view(op, args[0], declared), declared)
    except (ScheduleError, TypeError, IndexError, ValueError, ArithmeticError):
        return False


def _reshaped(base: TensorType, size: Shape) -> Shape:
    known = -prod(size) if -1 in size else 0
    return tuple(base.numel // known if n == -1 else n for n in size)


def _transposed(base: TensorType, first: int = 0, second: int = 1) -> Shape:
    shape = list(base.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape)


def _permuted(base: TensorType, order: Shape) -> Shape | None:
    axes = [_axis(at, len(base.shape)) for at in order]
    return tuple(base.shape[at] for at in axes) if len({*axes}) == len(base.shape) else None


def _expanded(base: TensorType, size: Shape) -> Shape | None:
    own = (1,) * (len(size) - len(base.shape)) + base.shape
    shape = tuple(n if wanted == -1 else wanted for n, wanted in zip(own, size, strict=True))
    return shape if all(n in (1, wanted) for n, wanted in zip(own, shape, strict=True)) else None


def _unsqueezed(base: TensorType, at: int) -> Shape:
    at = _axis(at, len(base.shape) + 1)
    return (*base.shape[:at], 1, *base.shape[at:])


def _squeezed(base: TensorType, at: int) -> Shape:
    at = _axis(at, len(base.shape))
    return base.shape if base.shape[at] != 1 else (*base.shape[:at], *base.shape[at + 1 :])


def _sliced(base: TensorType, at: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Shape:
    at = _axis(at, len(base.shape))
    if step < 1:
        raise ValueError
    return (*base.shape[:at], len(range(*slice(start, end, step).indices(base.shape[at]))), *base.shape[at + 1 :])


def _same(base: TensorType) -> Shape:
    return base.shape


_VIEW_SHAPES: Mapping[str, Callable[..., Shape | None]] = {
    "reshape": _reshaped,
    "transpose": _transposed,
    "permute": _permuted,
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "slice": _sliced,
    "same": _same,
}


# Results with a storage of their own


def _broadcast(*shapes: Shape) -> Shape | None:
    result: list[int] = []
    for at in range(-max(map(len, shapes)), 0):
        sizes = {shape[at] for shape in shapes if len(shape) >= -at} - {1}
        if len(sizes) > 1:
            return None
        result.append(next(iter(sizes), 1))
    return tuple(result)


def _elementwise(*args: _Typed) -> _Shapes:
    return [_broadcast(*(kind.shape for kind in _tensors(args)))]


def _alike(*args: _Typed) -> _Shapes:
    """The rule of operators whose tensors all have one shape."""
    first, *others = (kind.shape for kind in _tensors(args))
    return [first] if all(shape == first for shape in others) else None


def _along(x: TensorType, at: int, wider: object = None, *_: object) -> _Shapes:
    _axis(at, len(x.shape))
    return None if wider is True else [x.shape]


def _along_backward(grad: TensorType, result: TensorType, at: int, *_: object) -> _Shapes:
    return _along(result, at) if grad.shape == result.shape else None


def _product(left: TensorType, right: TensorType) -> _Shapes:
    *batch, rows, inner = left.shape
    *same, depth, columns = right.shape
    return [(*batch, rows, columns)] if inner == depth and batch == same else None


def _added_product(onto: TensorType, left: TensorType, right: TensorType) -> _Shapes:
    shapes = _product(left, right)
    return shapes if shapes and _broadcast(onto.shape, shapes[0] or ()) == shapes[0] else None


def _dropout(x: TensorType, share: float, train: bool) -> _Shapes:
    return (x.shape, x.shape) if train and share else None  # otherwise the result is the argument


def _reduced(x: TensorType, over: Shape, keep: bool = False) -> _Shapes:
    axes = {_axis(at, len(x.shape)) for at in over}
    if not axes or len(axes) < len(over):
        return None
    return [tuple(1 if at in axes else n for at, n in enumerate(x.shape) if keep or at not in axes)]


def _layer_norm(x: TensorType, last: Shape, weight: TensorType | None, bias: TensorType | None, *_: object) -> _Shapes:
    if not last or x.shape[-len(last) :] != last or any(each and each.shape != last for each in (weight, bias)):
        return None
    rows = x.shape[: -len(last)] + (1,) * len(last)
    return x.shape, rows, rows


def _layer_norm_backward(
    grad: TensorType, x: TensorType, last: Shape, mean: TensorType, rstd: TensorType, *rest: Any
) -> _Shapes:
    weight, bias, wanted = rest
    norm = _layer_norm(x, last, weight, bias)
    if norm is None or grad.shape != x.shape or mean.shape != norm[1] or rstd.shape != norm[1]:
        return None
    given = (True, weight is not None, bias is not None)
    return [s if w and g else None for s, w, g in zip((x.shape, last, last), wanted, given, strict=True)]


def _embedding(weight: TensorType, indices: TensorType, *_: object) -> _Shapes:
    return [(*indices.shape, weight.shape[1])] if len(weight.shape) == 2 else None


def _embedding_backward(grad: TensorType, indices: TensorType, count: int, *_: object) -> _Shapes:
    return [(count, grad.shape[-1])] if grad.shape[:-1] == indices.shape else None


def _joined(parts: Sequence[TensorType], at: int = 0) -> _Shapes:
    first = parts[0].shape
    at = _axis(at, len(first))
    others = {(*kind.shape[:at], *kind.shape[at + 1 :]) for kind in parts if len(kind.shape) == len(first)}
    if len(others) != 1 or any(len(kind.shape) != len(first) for kind in parts):
        return None
    return [(*first[:at], sum(kind.shape[at] for kind in parts), *first[at + 1 :])]


def _loss(x: TensorType, target: TensorType, weight: object, reduction: int, *_: object) -> _Shapes:
    alike = len(x.shape) == 2 and target.shape == x.shape[:1]
    return ((), ()) if alike and weight is None and reduction in (1, 2) else None


def _loss_backward(grad: TensorType, x: TensorType, *rest: Any) -> _Shapes:
    *arguments, _, total = rest
    return [x.shape] if _loss(x, *arguments) and grad.shape == total.shape == () else None


def _sized(size: Shape, *_: object) -> _Shapes:
    return [tuple(size)]


def _counted(end: int) -> _Shapes:
    return [(end,)] if type(end) is int else None


def _scalar(_: object) -> _Shapes:
    return [()]


def _slice_backward(grad: TensorType, size: Shape, *where: int) -> _Shapes:
    return [size] if _sliced(TensorType(grad.dtype, size), *where) == grad.shape else None


_RULES: Mapping[str, Callable[..., _Shapes]] = {
    **{
        name: _alike if name.endswith("_backward") else _elementwise
        for name, rule in ROWS.operators.items()
        if rule.rule == "elementwise" and rule.reduces is None
    },
    **dict.fromkeys(("aten._softmax", "aten._log_softmax", "aten._safe_softmax"), _along),
    **dict.fromkeys(("aten._softmax_backward_data", "aten._log_softmax_backward_data"), _along_backward),
    **dict.fromkeys(("aten.tril", "aten.triu"), _alike),
    **dict.fromkeys(("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax", "aten.logsumexp"), _reduced),
    **dict.fromkeys(("aten.ones", "aten.zeros", "aten.full"), _sized),
    "aten.mm": _product,
    "aten.bmm": _product,
    "aten.addmm": _added_product,
    "aten.baddbmm": _added_product,
    "aten.native_dropout": _dropout,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.cat": _joined,
    "aten.nll_loss_forward": _loss,
    "aten.nll_loss_backward": _loss_backward,
    "aten.slice_backward": _slice_backward,
    "aten.scalar_tensor": _scalar,
    "aten.arange": _counted,
}
