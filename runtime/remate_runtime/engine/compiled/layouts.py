"""Decides which tensors may have a different memory layout than the file declares, and plans the layout of images.

On the CPU, convolutions and their gradients are fastest on channels-last images: a depthwise gradient takes a third of
the time. Inductor chooses layouts within a segment only, so mixed layouts would meet at the borders of segments. So
all images of a stretch of convolutions are channels-last there. On other devices Inductor chooses.

Inductor stores the position of a maximum in its window as a byte, and converts it to a position in the image for the
gradient.

Tensors that the caller, an interpreted operation or a view accesses have the declared layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...flat_step.graph import Graph, Op, Ref
from ...format.json_values import is_array
from ...format.tensor_type import TensorType
from .segments import Segment, views_to

_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
_FLOATING = frozenset(("f64", "f32", "f16", "bf16"))
_ONEDNN = _FLOATING - {"f64"}
_POOLS = {"aten.max_pool2d_with_indices": 2, "aten.max_pool3d_with_indices": 3}  # by dimensions of space
_WINDOW = 25  # elements; Inductor has no kernel for larger windows


class MaxPool(NamedTuple):
    """The arguments of a pooling by maxima, with one number per spatial dimension, and the size of the image."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool
    image: list[int]


def free_layouts(graph: Graph) -> frozenset[int]:
    """Return the owners of storages that compiled segments may pass on in a different layout: images, and positions of
    maxima.

    No view reads them, except slices, which contain the same elements in any layout.
    """
    viewed = {
        graph.root[value] for op in graph.operations if not op.view for value in op.reads if not _is_part(graph, value)
    }
    owners = {owner for owner in range(len(graph.values)) if graph.root[owner] == owner} - viewed
    convolves = any(op.op in _CONVOLUTIONS for op in graph.operations)
    return frozenset(owner for owner in owners if (convolves and _is_image(graph, owner)) or pool_of(graph, owner))


def channels_last(graph: Graph, free: Collection[int]) -> dict[int, TensorType]:
    """Return the channels-last types of the images that convolutions read or produce, or that are connected to these by
    operations on images.

    Args:
        graph: The step.
        free: Owners that may have a different layout (`free_layouts`).
    """
    images = {owner for owner in free if _is_convolved(graph, owner)}
    neighbours: dict[int, set[int]] = {owner: set() for owner in images}
    reached: list[int] = []
    for op in graph.operations:
        together = images.intersection(graph.root[value] for value in _images_of(op))
        for owner in together:
            neighbours[owner] |= together
        if op.op in _CONVOLUTIONS:
            reached += together
    stretch: set[int] = set()
    while reached:
        owner = reached.pop()
        if owner not in stretch:
            stretch.add(owner)
            reached += neighbours[owner] - stretch
    return {owner: _channels_last(graph.values[owner].type) for owner in sorted(stretch)}


def _images_of(op: Op) -> list[int]:
    """Return the values of an operation that may be images: not a convolution's weight or its gradient."""
    if op.view:
        return []
    if op.op not in _CONVOLUTIONS:
        return [*op.reads, *(value for value in op.writes if value is not None)]
    arguments = op.args[:1] if op.op == _CONVOLUTIONS[0] else op.args[:2]
    return [value for value in (*(argument.value for argument in arguments), op.writes[0]) if value is not None]


def _is_convolved(graph: Graph, owner: int) -> bool:
    """Return whether a tensor is a dense image of a dtype that oneDNN convolves."""
    kind = graph.values[owner].type
    return _is_image(graph, owner) and kind.dtype in _ONEDNN and kind.nbytes == replace(kind, strides=None).nbytes


def _channels_last(kind: TensorType) -> TensorType:
    strides, size = [0] * len(kind.shape), 1
    for dim in (1, *range(len(kind.shape) - 1, 1, -1), 0):
        strides[dim] = size
        size *= kind.shape[dim]
    return replace(kind, strides=tuple(strides))


def _is_part(graph: Graph, value: int) -> bool:
    """Return whether a value is all of its storage, or a slice of it."""
    return all(graph.operations[index].op == "aten.slice.Tensor" for index in views_to(graph, value))


def _is_image(graph: Graph, owner: int) -> bool:
    """Return whether a tensor has channels and two or three spatial dimensions."""
    value = graph.values[owner]
    return value.kind == "op" and len(value.type.shape) in (4, 5) and value.type.dtype in _FLOATING


def pool_of(graph: Graph, owner: int) -> MaxPool | None:
    """Return the pooling whose positions of maxima the storage contains, if they fit into bytes; otherwise None."""
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
    pooled: Ref = given["self"]
    image = list(graph.values[pooled.value].type.shape[-dims:])
    return MaxPool(kernel, stride, padding, dilation, bool(given.get("ceil_mode", False)), image)


def _per_dimension(given: object, dims: int) -> list[Any]:
    row = list(given) if is_array(given) else [given]
    return row * dims if len(row) == 1 else row


def in_a_byte(kind: TensorType) -> TensorType:
    """Return the type of positions in windows, given the type of positions in the image."""
    return replace(kind, dtype="i8")


def held_outside(graph: Graph, interpreted: Iterable[Segment]) -> set[int]:
    """Return the owners of storages that the caller or an interpreted segment accesses."""
    seen = [*graph.outputs, *(value for pair in (*graph.gradients, *graph.updates) for value in pair)]
    for interpreted_segment in interpreted:
        for piece in interpreted_segment.pieces:
            op = graph.operations[piece.event.op]
            seen += [*op.reads, *(value for value in op.writes if value is not None)]
    return {graph.root[value] for value in seen}
