"""Synthetic arguments for an operation: real tensors of the recorded types with realistic values."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from remate_runtime.flat_step import Argument, Graph, Number, Op, Ref, planned_number
from remate_runtime.format import TensorType
from remate_runtime.operator_calls import TORCH_DTYPES, literal, read_on_host

from .signature import pending_of


def arguments(graph: Graph, op: Op, device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments.

    Floats are in (0.05, 0.95), indices are spread over their range, masks are mostly true. A view is rebuilt with its
    recorded strides. Random numbers come from the ambient generators.
    """
    bounds = _bounds(graph, op)
    on_cpu = {op.args[at].value for at in read_on_host(op.op) if isinstance(op.args[at], Ref)}
    tensors = {
        value: _value(graph, value, bounds.get(value, 1), torch.device("cpu") if value in on_cpu else device)
        for value in op.reads
    }

    def live(argument: Argument | list[Argument]) -> Any:
        if isinstance(argument, Ref):
            return tensors[argument.value]
        if isinstance(argument, Number):
            return planned_number(graph, argument)
        if isinstance(argument, tuple | list):
            return [live(item) for item in argument]
        return literal(argument, device)

    return [live(a) for a in op.args], {key: live(a) for key, a in op.kwargs.items()}


def _value(graph: Graph, value: int, bound: int, device: torch.device) -> torch.Tensor:
    tensor = _tensor(graph.values[value].type, bound, device)
    for pending in pending_of(graph, value):
        tensor = torch.ops.aten._conj(tensor) if pending == "conj" else torch.ops.aten._neg_view(tensor)
    return tensor


def _tensor(type_: TensorType, bound: int, device: torch.device) -> torch.Tensor:
    """Return a tensor. bound: integers are below this."""
    where = torch.device("cpu") if type_.cpu else device
    dtype = TORCH_DTYPES[type_.dtype]
    length = type_.nbytes // dtype.itemsize
    if dtype == torch.bool:
        flat = torch.rand(length, device=where) < 0.9
    elif dtype.is_complex:
        flat = torch.rand(length, dtype=dtype, device=where)
    elif dtype.is_floating_point:
        wide = dtype if dtype.itemsize > 1 else torch.float32
        flat = torch.rand(length, dtype=wide, device=where).mul_(0.9).add_(0.05).to(dtype)
    elif bound > 1:
        flat = torch.randint(0, bound, (length,), device=where).to(dtype)
    else:
        flat = torch.zeros(length, dtype=dtype, device=where)
    strides = type_.strides if type_.strides is not None else _contiguous(type_.shape)
    return flat.as_strided(type_.shape, strides)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape)))


_BY_DIMENSION = frozenset(
    """aten.gather aten.scatter.src aten.scatter.value aten.scatter_add aten.scatter_reduce.two aten.index_select
    aten.index_add aten.index_copy aten.index_fill.int_Scalar""".split()
)
_BY_POSITION = frozenset(
    """aten.index.Tensor aten._unsafe_index.Tensor aten.index_put aten._unsafe_index_put aten.index_put.hacked_twin
    aten._unsafe_masked_index aten._index_put_impl""".split()
)
# operator -> position of the class indices; the scores are just before them
_LABELS = {
    "aten.nll_loss_forward": 1,
    "aten.nll_loss2d_forward": 1,
    "aten.nll_loss_backward": 2,
    "aten.nll_loss2d_backward": 2,
}
# operator -> position of the indices into the plane of argument 1
_PLANES = {
    "aten.max_pool2d_with_indices_backward": 7,
    "aten.adaptive_max_pool2d_backward": 2,
    "aten.max_pool3d_with_indices_backward": 7,
    "aten.adaptive_max_pool3d_backward": 2,
}


def _bounds(graph: Graph, op: Op) -> dict[int, int]:
    """Return the upper bounds of index tensors among the arguments."""
    args, name = op.args, op.op
    if name == "aten.embedding":
        return _bound(args[1], _shape(graph, args[0])[0])
    if name == "aten.embedding_dense_backward":
        return _bound(args[1], args[2])
    if name in _BY_DIMENSION:
        shape = _shape(graph, args[0])
        axis: int = args[1]
        return _bound(args[2], shape[axis] if shape else 1)
    if name in _BY_POSITION:
        bounds: dict[int, int] = {}
        at = 0
        for argument in args[1]:
            if isinstance(argument, Ref) and graph.values[argument.value].type.dtype in ("bool", "u8"):
                at += len(_shape(graph, argument))  # a mask covers as many dimensions as it has
                continue
            bounds |= _bound(argument, _shape(graph, args[0])[at])
            at += 1
        return bounds
    if name in _LABELS:
        shape = _shape(graph, args[_LABELS[name] - 1])
        return _bound(args[_LABELS[name]], shape[min(1, len(shape) - 1)])
    if name in _PLANES:
        dimensions = 3 if "3d" in name else 2
        return _bound(args[_PLANES[name]], prod(_shape(graph, args[1])[-dimensions:]))
    return {}


def _bound(argument: object, below: int) -> dict[int, int]:
    return {argument.value: below} if isinstance(argument, Ref) else {}


def _shape(graph: Graph, argument: Ref) -> tuple[int, ...]:
    return graph.values[argument.value].type.shape
