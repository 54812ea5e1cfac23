"""The H-Partition: a tree of parts by the values that cross between them.

J. Gusak et al., HiRemate, ICML 2025: parts are merged from the bottom, two at a time, as long as none gets too large.
The next pair is always the one whose union has the fewest values crossing its border for its size. The results are the
leaves. Leaves are merged in the same way to nodes of a limited number of parts, and so on to the root. Differences:
parts are ranges of the forward with their range of the backward, because the order of the step is kept, so only
neighbours are merged; and the score is one of those that the authors' program offers, the number of crossing values
times the square root of the number of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt

import msgspec

from ...partition.hierarchy import BlockSpan
from ..chain.chain import segment_blocks
from ..instance import StepInstance
from ..problem import Problem
from .tree import Node, around

LEAF = 32  # most operations in the forward of a leaf
ATOM = 4  # operations in the smallest parts, about
PARTS = 8  # most parts of one node
Row = list[Node]


def h_partition(instance: StepInstance) -> Node:
    """Return the tree of a step."""
    problem = instance.problem
    most = min(LEAF, max(2, len(problem.forward) // PARTS))  # a small step has several parts, too
    atoms = [[Node(span)] for span in segment_blocks(problem, ATOM)]
    rows = _merged(problem, atoms, lambda row: _operations(problem, _whole(row)) <= most)
    nodes = [Node(_whole(row)) for row in rows]
    while len(nodes) > PARTS:
        rows = _merged(problem, [[node] for node in nodes], lambda row: len(row) <= PARTS)
        nodes = [row[0] if len(row) == 1 else Node(_whole(row), tuple(row)) for row in rows]
    return _named(nodes[0] if len(nodes) == 1 else Node(_whole(nodes), tuple(nodes)), "part")


def _merged(problem: Problem, rows: list[Row], fits: Callable[[Row], bool]) -> list[Row]:
    """Merge neighbours as long as a pair fits, always the pair of least score."""
    rows = list(rows)
    scores = [_score(problem, a + b) if fits(a + b) else None for a, b in pairwise(rows)]
    while any(score is not None for score in scores):
        at = min((score, n) for n, score in enumerate(scores) if score is not None)[1]
        rows[at : at + 2] = [rows[at] + rows[at + 1]]
        del scores[at]
        for n in (at - 1, at):
            if 0 <= n < len(scores):
                pair = rows[n] + rows[n + 1]
                scores[n] = _score(problem, pair) if fits(pair) else None
    return rows


def _score(problem: Problem, row: Row) -> float:
    """Return the number of values that cross the border of a range of the forward, weighted by its size."""
    begin, end = _whole(row).forward
    crossing = set[int]()
    for i in range(begin, end):
        crossing.update(s for s in problem.reads[i] if problem.producer[s] < begin)
        crossing.update(s for s in problem.writes[i] if problem.last_forward_read(s) >= end)
    return len(crossing) * sqrt(_operations(problem, _whole(row)))


def _operations(problem: Problem, span: BlockSpan) -> int:
    return sum(problem.real[i] for i in range(*span.forward))


def _whole(row: Sequence[Node]) -> BlockSpan:
    return around([node.span for node in row])


def _named(node: Node, name: str) -> Node:
    span = msgspec.structs.replace(node.span, id=name, prefix="", label=name)
    return Node(span, tuple(_named(part, f"{name}.{n}") for n, part in enumerate(node.parts)))
