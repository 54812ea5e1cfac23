"""Which tensors may lie otherwise than the file declares: Inductor's convolutions take and give channels last.

What passes from one compiled segment to another stays as Inductor laid it out. What the caller sees, what an interpreted
operation touches and what is seen through a view lies as the file declares.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...step.graph import Graph
from .segments import Segment

_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
_FLOATING = frozenset(("f64", "f32", "f16", "bf16"))


def images(graph: Graph) -> frozenset[int]:
    """Owners of storages with channels and two or three dimensions of space, in a step with convolutions; none of them is
    read through a view."""
    if not any(op.op in _CONVOLUTIONS for op in graph.operations):
        return frozenset()
    viewed = {
        graph.root[value] for op in graph.operations if not op.view for value in op.reads if value != graph.root[value]
    }
    return frozenset(
        owner
        for owner, value in enumerate(graph.values)
        if value.kind == "op"
        and graph.root[owner] == owner
        and owner not in viewed
        and len(value.type.shape) in (4, 5)
        and value.type.dtype in _FLOATING
    )


def held_outside(graph: Graph, interpreted: Iterable[Segment]) -> set[int]:
    """Owners of the storages that the caller sees, or that an operation of these segments touches."""
    seen = [*graph.outputs, *(value for pair in (*graph.gradients, *graph.updates) for value in pair)]
    for one in interpreted:
        for piece in one.pieces:
            op = graph.operations[piece.event.op]
            seen += [*op.reads, *(value for value in op.writes if value is not None)]
    return {graph.root[value] for value in seen}
