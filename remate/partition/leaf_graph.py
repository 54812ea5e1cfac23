"""A leaf of the hierarchy as a separate training step that can be planned alone."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import LIVE, Graph, Value, numbers_in, renumbered

from .hierarchy import BlockSpan


class LeafGraph(msgspec.Struct, frozen=True):
    """A leaf as a step.

    Attributes:
        graph: Forward and backward of the leaf. Values from outside are inputs. Values that are read outside leave the
            step.
        operations: For each operation of `graph`, its index in the whole graph.
    """

    graph: Graph
    operations: tuple[int, ...]


def leaf_graph(graph: Graph, part: BlockSpan, readers: list[list[int]]) -> LeafGraph:
    """Return a leaf as a step.

    Args:
        graph: The whole step.
        part: The leaf.
        readers: For each value of `graph`, the operations that read it.
    """
    order = (*range(*part.forward), *range(*part.backward))
    inside = set(order)
    values: list[Value] = []
    number: dict[int, int] = {}
    for v in dict.fromkeys(v for i in order for v in graph.operations[i].reads):
        if graph.values[v].producer not in inside:
            about = graph.values[v]
            number[v] = len(values)
            values.append(Value(about.name, about.type, "input" if about.kind != "constant" else "constant"))
    for v in dict.fromkeys(
        v for i in order for number_read in numbers_in(graph.operations[i]) for v in number_read.values
    ):
        number[v] = len(values)
        values.append(Value(graph.values[v].name, graph.values[v].type, LIVE, data=graph.values[v].data))
    for local, i in enumerate(order):
        for v in graph.operations[i].writes:
            if v is not None:
                number[v] = len(values)
                values.append(Value(graph.values[v].name, graph.values[v].type, "op", local))
    operations = tuple(renumbered(graph.operations[i], number.__getitem__) for i in order)
    backward_start = part.forward[1] - part.forward[0]
    leaving = {*graph.outputs, *(g for _, g in graph.gradients)}
    leaving_leaf = [
        v
        for i in order
        for v in graph.operations[i].writes
        if v is not None and (v in leaving or any(r not in inside for r in readers[v]))
    ]
    forward_values = {v for i in range(*part.forward) for v in graph.operations[i].writes}
    outputs = tuple(number[v] for v in leaving_leaf if v in forward_values)
    gradients = tuple((0, number[v]) for v in leaving_leaf if v not in forward_values)
    root = list(range(len(values)))
    for op in operations:
        for v in op.writes if op.view else ():
            if v is not None:
                root[v] = root[op.reads[0]]
    return LeafGraph(
        Graph(tuple(values), operations, backward_start, outputs, gradients, (), tuple(root), graph.device),
        tuple(order),
    )
