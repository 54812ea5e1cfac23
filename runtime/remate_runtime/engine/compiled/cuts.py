"""Predicts where to cut a segment that exceeds the budget, from its graph alone, so that its parts are compiled once.

Compiled code writes less than the interpreter, because fused values stay in registers. It may also hold more, because
Inductor moves operations: recomputations of several blocks may run at the beginning. One compilation of the whole
segment shows how much more. The estimate for a part is interpolated by the same share between two figures that
follow from the graph: the interpreter's peak in the part, and the sum of everything that the part produces.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...flat_step.graph import Graph
from .live_ranges import Piece


class _Estimate(NamedTuple):
    """Memory of a segment in bytes, by piece.

    Attributes:
        before: Alive before the piece, of what the segment produces or may free.
        produced: Produced by the piece.
    """

    before: list[int]
    produced: list[int]

    def interpreted(self, start: int, end: int) -> int:
        return max(self.before[at] + self.produced[at] for at in range(start, end))

    def together(self, start: int, end: int) -> int:
        return self.before[start] + sum(self.produced[start:end])


def cut_places(
    graph: Graph, pieces: Sequence[Piece], dead: Collection[int], borders: Collection[int], peak: int, limit: int
) -> list[int]:
    """Return where to cut a segment so that each part is predicted to keep a limit.

    A part extends as far as possible. It ends at a border of two blocks if it reaches one. A single operation may
    exceed the limit; nothing can be done about it here.

    Args:
        graph: The step.
        pieces: The segment's computations.
        dead: Owners of the storages from outside that the segment frees.
        borders: Preferred places: indices of pieces that begin a block.
        peak: Bytes of the compiled segment, counted as those of `dead` and of what it produces.
        limit: Bytes that a part may hold.

    Returns:
        Indices of the pieces that begin the second and later parts, at least one if there are two pieces.
    """
    estimate, count = _estimate(graph, pieces, dead), len(pieces)
    low, high = estimate.interpreted(0, count), estimate.together(0, count)
    moved = min(1.0, max(0.0, (peak - low) / max(1, high - low)))
    smaller = min(1.0, peak / max(1, low))

    def predicted(start: int, end: int) -> float:
        least = estimate.interpreted(start, end)
        return smaller * least + moved * (estimate.together(start, end) - least)

    places, start = list[int](), 0
    while start < count:
        end = start + 1
        while end < count and predicted(start, end + 1) <= limit:
            end += 1
        if end < count:
            end = _best_end(estimate, borders, start, end)
            places.append(end)
        start = end
    if not places and count > 1:
        places = [_best_end(estimate, borders, 0, count - 1)]
    return places


def _best_end(estimate: _Estimate, borders: Collection[int], start: int, end: int) -> int:
    """Return the last border of a part from `start` to `end`; without one, where the fewest bytes pass to the next part
    among the places in its second half."""
    inside = [border for border in borders if start < border <= end]
    if inside:
        return max(inside)
    return min(range(start + max(1, (end - start) // 2), end + 1), key=lambda at: (estimate.before[at], -at))


def _estimate(graph: Graph, pieces: Sequence[Piece], dead: Collection[int]) -> _Estimate:
    alive, before, produced = set(dead), list[int](), list[int]()
    level = sum(graph.nbytes(owner) for owner in alive)
    for piece in pieces:
        written = {value for value in graph.operations[piece.event.op].writes if value is not None} - alive
        before.append(level)
        produced.append(sum(graph.nbytes(owner) for owner in written))
        alive |= written
        freed = alive.intersection(piece.dead)
        level += produced[-1] - sum(graph.nbytes(owner) for owner in freed)
        alive -= freed
    return _Estimate(before, produced)
