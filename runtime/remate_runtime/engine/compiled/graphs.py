"""Converts a segment to an fx graph of the schedule's own operators. The graph creates views from the owners of their
storages."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from ...flat_step.graph import Graph, Op, Ref
from ...format.json_values import is_tuple
from ...format.tensor_type import TensorType
from ...operator_calls.overloads import TORCH_DTYPES, literal
from ...torch_private.operators import OpOverload
from . import inductor
from .layouts import MaxPool, in_a_byte, pool_of
from .segments import Segment, views_to

_NORMS = frozenset(("aten.native_layer_norm", "aten.native_group_norm"))
_BATCH_NORM = "aten._native_batch_norm_legit_functional"
_GROUP_NORM_BACKWARD = "aten.native_group_norm_backward"
_RESHAPES = frozenset(("aten.view", "aten._unsafe_view"))
NO_IMAGES: Mapping[int, TensorType] = {}


class SegmentGraph(NamedTuple):
    """A segment as a graph. Segments with equal `key` share a compiled function.

    Attributes:
        module: The graph.
        input_types: Types of the inputs, in the order of the segment's `reads`.
        output_types: Types of the outputs, in the order of the segment's `makes`.
        donated: Indices of the inputs that the function may overwrite.
        free: Indices of the outputs whose memory layout Inductor may choose.
    """

    module: fx.GraphModule
    input_types: tuple[TensorType, ...]
    output_types: tuple[TensorType, ...]
    donated: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def key(self) -> str:
        types = "; ".join(",".join(map(str, kinds)) for kinds in (self.input_types, self.output_types))
        return f"{self.module.code}\n{types}\n{self.donated} {self.free}"


def segment_graph(
    graph: Graph,
    segment: Segment,
    operators: Mapping[str, OpOverload],
    layouts: Mapping[int, TensorType],
    free: Collection[int],
    device: torch.device,
    images: Mapping[int, TensorType] = NO_IMAGES,
) -> SegmentGraph:
    """Return the graph of a segment.

    An input is donated if it dies in the segment and no caller may hold it. Callers may hold outputs of the model and
    their own tensors.

    Args:
        graph: The step.
        segment: The segment.
        operators: The live operator of every name in the graph.
        layouts: Types of the owners whose memory layout differs from the declared one.
        free: Owners whose memory layout Inductor may choose. Positions of maxima among them are bytes.
        device: The device that the segment runs on.
        images: Types of the owners with a planned memory layout (`layouts.channels_last`).
    """
    outputs = {graph.root[value] for value in graph.outputs}
    gone = {owner for owner in segment.dead if graph.values[owner].kind == "op" and owner not in outputs}
    donated = tuple(at for at, owner in enumerate(segment.reads) if owner in gone)
    building = _Building(graph, operators, device)
    for at, owner in enumerate(segment.reads):
        # Inductor decides by the name whether it may free an input early: never if the name begins with `arg`.
        node = building.fx.placeholder(f"v{at}" if at in donated else f"arg{at}")
        building.take(owner, node, layouts.get(owner, graph.values[owner].type))
    for piece in segment.pieces:
        building.run(graph.operations[piece.event.op])
    building.fx.output(tuple(building.given(owner, owner in free) for owner in segment.makes))
    input_types = tuple(layouts.get(owner, graph.values[owner].type) for owner in segment.reads)
    output_types = tuple(images.get(owner) or _given_as(graph, owner, owner in free) for owner in segment.makes)
    chosen = tuple(at for at, owner in enumerate(segment.makes) if owner in free)
    return SegmentGraph(fx.GraphModule(torch.nn.Module(), building.fx), input_types, output_types, donated, chosen)


def _given_as(graph: Graph, owner: int, free: bool) -> TensorType:
    kind = graph.values[owner].type
    return in_a_byte(kind) if free and pool_of(graph, owner) else kind


class _Building:
    def __init__(self, graph: Graph, operators: Mapping[str, OpOverload], device: torch.device) -> None:
        self.graph, self.operators, self.device = graph, operators, device
        self.fx = fx.Graph()
        self.contents: dict[int, fx.Node] = {}  # by owner of a storage: its current contents
        self._views: dict[tuple[int, fx.Node], fx.Node] = {}
        self._bytes: dict[int, fx.Node] = {}  # by owner of positions of maxima: their positions in the windows

    def take(self, owner: int, node: fx.Node, kind: TensorType) -> None:
        """Add an input. kind: its type, which may be that of positions in windows."""
        pool = pool_of(self.graph, owner)
        if pool is None or kind.dtype == self.graph.values[owner].type.dtype:
            self.contents[owner] = node
        else:
            self._place(owner, pool, node)

    def given(self, owner: int, free: bool) -> fx.Node:
        """Return the output for this storage."""
        return self._bytes[owner] if free and owner in self._bytes else self.contents[owner]

    def run(self, op: Op) -> None:
        for value, node in self._results(op):
            self.contents[value] = node

    def _place(self, owner: int, pool: MaxPool, node: fx.Node) -> None:
        unpack = inductor.pooling().to_indices
        args = (node, pool.kernel, pool.image, pool.stride, pool.padding, pool.dilation)
        self._bytes[owner], self.contents[owner] = node, self.fx.call_function(unpack, args)

    def _results(self, op: Op) -> list[tuple[int, fx.Node]]:
        places = op.writes[1] if len(op.writes) == 2 else None
        pool = None if places is None else pool_of(self.graph, places)
        if places is None or pool is None:
            return self._as_recorded(op)
        args = (self._argument(op.args[0]), pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil)
        node = self.fx.call_function(inductor.pooling().with_offsets, args)
        largest, offsets = (self.fx.call_function(operator.getitem, (node, at)) for at in range(2))
        self._place(places, pool, offsets)
        return [
            (value, result)
            for value, result in zip(op.writes, (largest, self.contents[places]), strict=True)
            if value is not None
        ]

    def _as_recorded(self, op: Op) -> list[tuple[int, fx.Node]]:
        kwargs = {name: self._argument(value) for name, value in op.kwargs.items()}
        args = tuple(map(self._argument, op.args))
        if op.op == "aten.convolution_backward" and self.device.type == "cpu":
            args = (args[0], self._as_image(op.args[1]), *args[2:])
        batch_norm = op.op == _BATCH_NORM and self.device.type == "cpu"
        if (op.op in _NORMS or batch_norm) and (finer := self._precision_of_statistics(op)):
            return self._in_precision(finer, op, args, kwargs)
        # If the argument does not have the declared memory layout, a view of this shape may not exist.
        operator_ = torch.ops.aten.reshape.default if op.op in _RESHAPES else self.operators[op.op]
        node = self.fx.call_function(operator_, args, kwargs)
        parts = [
            (value, self.fx.call_function(operator.getitem, (node, at)) if op.multiple else node)
            for at, value in enumerate(op.writes)
            if value is not None
        ]
        if batch_norm or op.op == _GROUP_NORM_BACKWARD:
            return [(value, self._as_declared(value, part)) for value, part in parts]
        return parts

    def _as_declared(self, value: int, node: fx.Node) -> fx.Node:
        """Cast a result in low precision: Inductor computes new running statistics, and the gradient of a group norm's
        input, in the precision of the weights."""
        dtype = self.graph.values[value].type.dtype
        low: Any = torch.ops.prims.convert_element_type.default
        return node if dtype == "f32" else self.fx.call_function(low, (node, TORCH_DTYPES[dtype]))

    def _precision_of_statistics(self, op: Op) -> str:
        """Return the dtype of a norm's statistics if it differs from that of its input, else ""."""
        source: Ref = op.args[0]
        given = self.graph.values[source.value].type.dtype
        kinds = [self.graph.values[value].type.dtype for value in op.writes[1:] if value is not None]
        return next((kind for kind in kinds if kind != given), "")

    def _in_precision(
        self, dtype: str, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[int, fx.Node]]:
        """Add a norm under autocast as its kernel computes it: only the result has low precision. Inductor's
        decomposition computes statistics in low precision, too."""
        convert = torch.ops.prims.convert_element_type.default
        source: Ref = op.args[0]
        low = TORCH_DTYPES[self.graph.values[source.value].type.dtype]
        fine = self.fx.call_function(convert, (args[0], TORCH_DTYPES[dtype]))
        node = self.fx.call_function(self.operators[op.op], (fine, *args[1:]), kwargs)
        parts = [self.fx.call_function(operator.getitem, (node, at)) for at in range(len(op.writes))]
        parts[0] = self.fx.call_function(convert, (parts[0], low))
        return [(value, part) for value, part in zip(op.writes, parts, strict=True) if value is not None]

    def _as_image(self, argument: Ref) -> fx.Node:
        """Convert an image of the caller to channels-last. Otherwise Inductor would copy the gradient of the first
        convolution, which has many more channels."""
        node = self._value(argument.value)
        kind = self.graph.values[argument.value]
        if kind.kind == "input" and len(kind.type.shape) == 4 and kind.type.strides is None:
            last: Any = {"memory_format": torch.channels_last}
            return self.fx.call_function(torch.ops.aten.clone.default, (node,), last)
        return node

    def _argument(self, argument: object) -> Any:
        if isinstance(argument, Ref):
            return self._value(argument.value)
        if is_tuple(argument):
            return [self._argument(item) for item in argument]
        return literal(argument, self.device)

    def _value(self, value: int) -> fx.Node:
        owner = self.contents[self.graph.root[value]]
        for index in views_to(self.graph, value):
            op = self.graph.operations[index]
            if any((written, owner) not in self._views for written in op.writes if written is not None):
                self._views.update({(written, owner): node for written, node in self._results(op)})
        return owner if value == self.graph.root[value] else self._views[value, owner]
