"""The tree of a step. Leaves are parts of a limited number of operations; other nodes have a limited number of parts.

Where a model has modules, they are the tree. A part that is small enough is one leaf, and rows of equal parts are
grouped into rows of equal length, so that repeated rows are solved once. A part without modules, or a large leaf, is
cut where few bytes cross (`segments`). HiRemate cuts by a score over the graph instead (`h_partition`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from remate_runtime.flat_step import Graph

from ...partition.canonical import readers_of
from ...partition.hierarchy import BlockSpan
from ...partition.leaf_graph import leaf_graph
from ..chain.chain import segment_blocks
from ..instance import StepInstance
from ..problem import Problem
from ..segments import segment_length

LARGEST = 64  # most operations in the forward of a leaf
SHORT = 32  # operations of a segment, where a leaf is cut
MOST = 16  # most parts of one node


class Node(msgspec.Struct, frozen=True):
    """A node of the tree.

    Attributes:
        span: Ranges of operations.
        parts: In forward order; empty for a leaf.
    """

    span: BlockSpan
    parts: tuple[Node, ...] = ()

    def levels(self) -> int:
        """Return the number of levels from here."""
        return 1 + max((part.levels() for part in self.parts), default=0)


def tree(instance: StepInstance) -> Node:
    """Return the tree of a step."""
    graph = instance.graph
    readers = readers_of(graph)
    blocks = instance.blocks or segment_blocks(instance.problem, segment_length(instance.problem, SHORT, MOST))
    nodes = [_node(graph, block, readers) for block in blocks]
    if len(nodes) == 1:
        return nodes[0] if nodes[0].parts else _cut(graph, nodes[0].span, readers) or nodes[0]
    nodes = _grouped(nodes)
    return Node(around([node.span for node in nodes]), tuple(nodes))


def _node(graph: Graph, block: BlockSpan, readers: list[list[int]]) -> Node:
    small = _count(graph, block) <= LARGEST
    if small:
        return Node(msgspec.structs.replace(block, parts=()))
    if not block.parts:
        return _cut(graph, block, readers) or Node(block)
    parts = _grouped([_node(graph, part, readers) for part in block.parts])
    return parts[0] if len(parts) == 1 else Node(msgspec.structs.replace(block, parts=()), tuple(parts))


def _count(graph: Graph, block: BlockSpan) -> int:
    return sum(not graph.operations[i].view for i in range(*block.forward))


def _cut(graph: Graph, block: BlockSpan, readers: list[list[int]]) -> Node | None:
    """Return a leaf as a node of segments, or None if it is one segment."""
    alone = Problem(leaf_graph(graph, block, readers).graph)
    backward_start, (forward, backward) = alone.backward_start, (block.forward[0], block.backward[0])
    parts = [
        msgspec.structs.replace(
            part,
            forward=(part.forward[0] + forward, part.forward[1] + forward),
            backward=(part.backward[0] - backward_start + backward, part.backward[1] - backward_start + backward),
        )
        for part in segment_blocks(alone, segment_length(alone, SHORT, MOST))
    ]
    if len(parts) < 2:
        return None
    return Node(msgspec.structs.replace(block, parts=()), tuple(_grouped([Node(part) for part in parts])))


def _grouped(nodes: Sequence[Node]) -> list[Node]:
    """Return at most MOST nodes. Rows of equal nodes are grouped first, then all nodes."""
    groups = list(nodes)
    if len(groups) > MOST:
        rows = [list(row) for _, row in groupby(groups, key=_look)]
        groups = [node for row in rows for node in (_evenly(row, MOST // 2) if len(row) > MOST // 2 else row)]
    while len(groups) > MOST:
        groups = _evenly(groups, MOST)
    return groups


def _look(node: Node) -> tuple[str, int, int]:
    """Return a key that is equal for equal parts. Segments are all different."""
    (a, b), (c, d) = node.span.forward, node.span.backward
    return (node.span.label, b - a, d - c) if node.span.prefix else ("", a, c)


def _evenly(row: Sequence[Node], most: int) -> list[Node]:
    """Group neighbours into about `most` nodes, or into more nodes of MOST parts each."""
    width = min(MOST, -(-len(row) // most))
    chunks = [row[n : n + width] for n in range(0, len(row), width)]
    return [c[0] if len(c) == 1 else Node(around([node.span for node in c]), tuple(c)) for c in chunks]


def around(spans: Sequence[BlockSpan]) -> BlockSpan:
    """Return the span of neighbours."""
    first, last = spans[0], spans[-1]
    forward, backward = (first.forward[0], last.forward[1]), (last.backward[0], first.backward[1])
    return msgspec.structs.replace(first, forward=forward, backward=backward, parts=())
