"""Divides a captured step into a hierarchy of blocks: by modules where the graph agrees with them, by cuts elsewhere.

The forward keeps its order. Backward operations follow their forward block, by block in reverse.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from ..capture.captured import Captured
from .backward import assign, reorder
from .cuts import costs
from .hierarchy import BlockSpan, Hierarchy, whole
from .naming import name_parts
from .pieces import Divider

__all__ = ["BlockSpan", "Hierarchy", "partition", "whole"]


def partition(captured: Captured) -> Hierarchy:
    """Return the hierarchy of a captured step. The result is deterministic."""
    graph = captured.graph
    if graph.backward_start == 0:
        return whole(captured)
    pieces = Divider(captured, costs(graph)).divide(0, graph.backward_start, "")
    parts = name_parts(captured, pieces)
    leaves = [leaf for part in parts for leaf in part.leaves()]
    block_of = [k for k, leaf in enumerate(leaves) for _ in range(*leaf.forward)]
    blocks = assign(captured, block_of)
    moved, order = reorder(captured, blocks)
    counts = Counter(blocks[graph.backward_start :])
    spans: dict[str, tuple[int, int]] = {}
    at = graph.backward_start
    for k in range(len(leaves) - 1, -1, -1):
        spans[leaves[k].id] = (at, at + counts[k])
        at += counts[k]
    return Hierarchy(moved, tuple(_with_backward(part, spans) for part in parts), order)


def _with_backward(part: BlockSpan, spans: dict[str, tuple[int, int]]) -> BlockSpan:
    """Return the part with the ranges of its leaves' backward operations."""
    if not part.parts:
        return msgspec.structs.replace(part, backward=spans[part.id])
    parts = tuple(_with_backward(child, spans) for child in part.parts)
    span = (parts[-1].backward[0], parts[0].backward[1])
    return msgspec.structs.replace(part, parts=parts, backward=span)
