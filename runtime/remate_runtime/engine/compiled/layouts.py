"""Which tensors may have a different memory layout than the file declares: Inductor's convolutions take and give
channels last, and the maximum of a window is reported by its place in that window, in a byte, until the gradient asks
for its place in the image.

What passes from one compiled segment to another stays as Inductor laid it out. What the caller sees, what an
interpreted operation touches and what is seen through a view lies as the file declares.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...flat_step.graph import Graph
from ...format.tensor_type import TensorType
from .segments import Segment, views_to

_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
_FLOATING = frozenset(("f64", "f32", "f16", "bf16"))
_POOLS = {"aten.max_pool2d_with_indices": 2, "aten.max_pool3d_with_indices": 3}  # by dimensions of space
_WINDOW = 25  # elements: of larger ones Inductor has no kernel


class MaxPool(NamedTuple):
    """A pooling by maxima: its arguments, with a number per dimension of space, and the size of the image."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool
    image: list[int]


def free_to_lie(graph: Graph) -> frozenset[int]:
    """Owners of storages that compiled segments may pass to each other in forms of their own: images, and the places of
    maxima. None of them is read through a view, but for parts, which are the same elements however they lie."""
    viewed = {
        graph.root[value] for op in graph.operations if not op.view for value in op.reads if not _is_part(graph, value)
    }
    owners = {owner for owner in range(len(graph.values)) if graph.root[owner] == owner} - viewed
    convolves = any(op.op in _CONVOLUTIONS for op in graph.operations)
    return frozenset(owner for owner in owners if (convolves and _is_image(graph, owner)) or pool_of(graph, owner))


def _is_part(graph: Graph, value: int) -> bool:
    """Whether the value is the whole of its storage, or a part of it along its dimensions."""
    return all(graph.operations[index].op == "aten.slice.Tensor" for index in views_to(graph, value))


def _is_image(graph: Graph, owner: int) -> bool:
    """Whether it has channels and two or three dimensions of space."""
    value = graph.values[owner]
    return value.kind == "op" and len(value.type.shape) in (4, 5) and value.type.dtype in _FLOATING


def pool_of(graph: Graph, owner: int) -> MaxPool | None:
    """The pooling whose places of maxima these are, if a byte can tell them; None for all else."""
    if graph.values[owner].producer < 0:
        return None
    op = graph.operations[graph.values[owner].producer]
    dims = _POOLS.get(op.op)
    if dims is None or op.writes[1] != owner:
        return None
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given: dict[str, Any] = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    kernel = _per_dimension(given["kernel_size"], dims)
    stride = _per_dimension(given.get("stride") or kernel, dims)
    padding, dilation = (
        _per_dimension(given.get(name, default), dims) for name, default in (("padding", 0), ("dilation", 1))
    )
    if prod(kernel) > _WINDOW or not all(isinstance(number, int) for number in (*kernel, *stride, *padding, *dilation)):
        return None
    image = list(graph.values[given["self"].value].type.shape[-dims:])
    return MaxPool(kernel, stride, padding, dilation, bool(given.get("ceil_mode", False)), image)


def _per_dimension(given: Any, dims: int) -> list[Any]:
    row = list(given) if isinstance(given, tuple | list) else [given]
    return row * dims if len(row) == 1 else row


def in_a_byte(kind: TensorType) -> TensorType:
    """The type of places in windows, for that of places in the image."""
    return replace(kind, dtype="i8")


def held_outside(graph: Graph, interpreted: Iterable[Segment]) -> set[int]:
    """Owners of the storages that the caller sees, or that an operation of these segments touches."""
    seen = [*graph.outputs, *(value for pair in (*graph.gradients, *graph.updates) for value in pair)]
    for interpreted_segment in interpreted:
        for piece in interpreted_segment.pieces:
            op = graph.operations[piece.event.op]
            seen += [*op.reads, *(value for value in op.writes if value is not None)]
    return {graph.root[value] for value in seen}
