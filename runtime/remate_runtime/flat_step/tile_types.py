"""Types of tiles, and of views of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from ..errors import ScheduleError
from ..format.tensor_type import TensorType
from ..operators.rows import ROWS
from .graph import Op


def _strides(kind: TensorType) -> tuple[int, ...]:
    if kind.strides is not None:
        return kind.strides
    return tuple(prod(kind.shape[at + 1 :]) for at in range(len(kind.shape)))


def _with_strides(kind: TensorType, strides: Sequence[int]) -> TensorType:
    """Return a type with these strides, or without any if it is contiguous."""
    plain = replace(kind, strides=None)
    same = all(n < 2 or s == own for n, s, own in zip(kind.shape, strides, _strides(plain), strict=True))
    return plain if same else replace(kind, strides=tuple(strides))


def same_layout(one: TensorType, other: TensorType) -> bool:
    """Return whether types of the same shape have the same strides. Those of axes of one element do not count."""
    if one.strides is other.strides is None:
        return True
    return all(n < 2 or a == b for n, a, b in zip(one.shape, _strides(one), _strides(other), strict=True))


def sliced(kind: TensorType, axis: int, count: int) -> TensorType:
    shape = (*kind.shape[:axis], count, *kind.shape[axis + 1 :])
    return _with_strides(replace(kind, shape=shape), _strides(kind))


def with_column(kind: TensorType) -> TensorType:
    """Return the type with one element on a new axis 1."""
    (first, *others), strides = kind.shape, _strides(kind)
    ahead = others[0] * strides[1] if others else 1
    return _with_strides(replace(kind, shape=(first, 1, *others)), (strides[0], ahead, *strides[1:]))


def as_view(op: Op, base: TensorType, kind: TensorType) -> TensorType:
    """Return the type of a view of a tile. kind: a type with the shape of the view."""
    match ROWS.views[op.op]:
        case "transpose":
            strides = list(_strides(base))
            first, second = (0, 1) if len(op.args) == 1 else (int(at) % len(strides) for at in op.args[1:3])
            strides[first], strides[second] = strides[second], strides[first]
            return _with_strides(kind, strides)
        case "permute":
            return _with_strides(kind, [_strides(base)[int(at) % len(base.shape)] for at in op.args[1]])
        case "expand":
            shift = len(kind.shape) - len(base.shape)
            own = (0,) * shift + _strides(base)
            sizes = (1,) * shift + base.shape
            strides = [0 if a != b else s for a, b, s in zip(sizes, kind.shape, own, strict=True)]
            return _with_strides(kind, strides)
        case "same":
            return base
        case "slice":
            at, step = (int(op.args[1]) if len(op.args) > 1 else 0), (int(op.args[4]) if len(op.args) > 4 else 1)
            strides = list(_strides(base))
            strides[at] *= step
            return _with_strides(kind, strides)
        case "reshape" | "squeeze" | "unsqueeze":
            pass
    if (view := reshaped(base, kind.shape)) is None:
        message = f"{op.id[:120]!r} is a view of a tensor that is not contiguous"
        raise ScheduleError("R091", message, hint="leave operations out of the split")
    return view


def expanded(kind: TensorType) -> TensorType:
    """Return the type of a view of one element with the shape of a type."""
    return _with_strides(kind, (0,) * len(kind.shape))


def reshaped(kind: TensorType, shape: tuple[int, ...]) -> TensorType | None:
    """Return the type of a view with another shape; None if PyTorch has to copy for it."""
    old, strides, new, at = kind.shape, _strides(kind), [1] * len(shape), len(shape)
    end = len(old)
    while end > 0:  # axes [start, end) of the base are evenly spaced
        start = end - 1
        while start > 0 and (old[start - 1] == 1 or strides[start - 1] == strides[end - 1] * prod(old[start:end])):
            start -= 1
        elements, within = prod(old[start:end]), 1
        while at > 0 and (within < elements or shape[at - 1] == 1):
            at -= 1
            new[at] = within * strides[end - 1]
            within *= shape[at]
        if within != elements:
            return None
        end = start
    return None if at else _with_strides(replace(kind, shape=shape), new)


def memory_order(kind: TensorType) -> tuple[int, ...]:
    """Return the axes of a tensor without gaps, from the outermost to the innermost in memory."""
    order = sorted(range(len(kind.shape)), key=lambda at: (kind.shape[at] > 1, -_strides(kind)[at]))
    several = [at for at in order if kind.shape[at] > 1]
    return tuple(range(len(order)) if several == sorted(several) else order)


def in_order(kind: TensorType) -> bool:
    """Return whether elementwise operators give a contiguous result of such a tensor."""
    strides = _strides(kind)
    return all(strides) and list(strides) == sorted(strides, reverse=True)


def dense(kind: TensorType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return dense strides for a shape, in the order of the strides of a type."""
    order = sorted(range(len(shape)), key=lambda at: -_strides(kind)[at])
    return tuple(prod(shape[other] for other in order[order.index(at) + 1 :]) for at in range(len(shape)))
