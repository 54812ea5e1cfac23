"""Cuts from the graph itself, for spans without module structure: forward positions that few bytes cross.

A span that repeats (an unrolled recurrence, layers without modules) is cut once per repetition, always at the same
place of the period. Other spans are cut along a shortest path over the positions. Its length weighs crossing bytes
against uneven sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import cast

import msgspec
import numpy as np

from remate_runtime.flat_step import Graph, Number, Ref

SMALL, LARGE, TARGET = 6, 96, 32  # smallest, largest and preferred size of a leaf: forward operations without views
_LONGEST = 2000  # operations of the longest period that is searched for


class Costs(msgspec.Struct, frozen=True):
    """The costs of cuts.

    Attributes:
        crossing: Bytes of forward values needed on both sides of each position.
        weight: Operations that are no views before each position.
        signs: A number per operation, equal for equal operator, literals and types.
    """

    crossing: tuple[int, ...]
    weight: tuple[int, ...]
    signs: tuple[int, ...]

    def size(self, start: int, stop: int) -> int:
        return self.weight[stop] - self.weight[start]


def costs(graph: Graph) -> Costs:
    """Return the cost of cutting the forward at each position."""
    backward_start = graph.backward_start
    last: dict[int, int] = {}
    born: dict[int, int] = {}
    for i, op in enumerate(graph.operations[:backward_start]):
        for value in op.reads:
            if graph.root[value] in born:
                last[graph.root[value]] = i
        for value in op.writes:
            if value is not None and graph.root[value] == value:
                born[value] = i
    change = [0] * (backward_start + 1)
    for value, end in last.items():
        change[born[value] + 1] += graph.nbytes(value)
        change[end + 1] -= graph.nbytes(value)
    known: dict[str, int] = {}
    signs = tuple(known.setdefault(_sign(graph, i), len(known)) for i in range(backward_start))
    weight = (0, *accumulate(int(not op.view) for op in graph.operations[:backward_start]))
    return Costs(tuple(accumulate(change)), weight, signs)


def cut(graph: Graph, costs_at: Costs, start: int, stop: int) -> list[tuple[int, int]]:
    """Divide the span [start, stop) of the forward into spans small enough for leaves."""
    if costs_at.size(start, stop) <= LARGE and costs_at.size(start, stop) < 2 * TARGET:
        return [(start, stop)]
    repeats = _repeats(costs_at, start, stop)
    if not repeats:
        return _shortest(graph, costs_at, start, stop)
    spans = cut(graph, costs_at, start, repeats[0]) if repeats[0] > start else []
    for a, b in pairwise(repeats):
        spans += [(a, b)] if costs_at.size(a, b) <= LARGE else _shortest(graph, costs_at, a, b)
    return spans + (cut(graph, costs_at, repeats[-1], stop) if repeats[-1] < stop else [])


def _repeats(costs_at: Costs, start: int, stop: int) -> list[int]:
    """Return the boundaries of at least three repetitions that form a good part of the span; [] if it does not
    repeat."""
    signs = np.array(costs_at.signs[start:stop])
    best = (0, 0, 0)  # covered operations, first, period
    for period in range(1, min(len(signs) // 3, _LONGEST) + 1):
        first, length = _longest_run(signs[:-period] == signs[period:])
        covered = length + period
        if covered >= 3 * period and covered > 1.05 * best[0]:
            best = (covered, first, period)
    covered, first, period = best
    if covered < (stop - start) // 4 or len(signs) < 3:
        return []
    begin, end = start + first, start + first + covered
    per_leaf = max(1, round(TARGET / max(1, costs_at.size(begin, begin + period))))
    stride = period * (per_leaf if covered >= 2 * period * per_leaf else 1)
    phase = min(range(period), key=lambda k: (sum(costs_at.crossing[begin + k : end + 1 : stride]) * stride, k))
    return list(range(begin + phase, end + 1, stride))


def _longest_run(equal: np.ndarray) -> tuple[int, int]:
    """Return (start, length) of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    if len(edges) == 0:
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    k = int(np.argmax(lengths))
    return int(edges[2 * k]), int(lengths[k])


def _shortest(graph: Graph, costs_at: Costs, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the cuts of least total cost: crossing bytes relative to the mean, plus squared deviation from the
    target."""
    places = [start, *(p for p in range(start + 1, stop) if not graph.operations[p - 1].view), stop]
    typical = max(1.0, sum(costs_at.crossing[p] for p in places) / len(places))
    best = [0.0] + [float("inf")] * (len(places) - 1)
    before = [0] * len(places)
    for b in range(1, len(places)):
        for a in range(b - 1, -1, -1):
            size = costs_at.size(places[a], places[b])
            if size > LARGE and a < b - 1:
                break
            uneven = ((size - TARGET) / TARGET) ** 2
            crossing = costs_at.crossing[places[b]] / typical if b < len(places) - 1 else 0.0
            if best[a] + uneven + crossing < best[b]:
                best[b], before[b] = best[a] + uneven + crossing, a
    marks = [len(places) - 1]
    while marks[-1] != 0:
        marks.append(before[marks[-1]])
    marks.reverse()
    return [(places[a], places[b]) for a, b in pairwise(marks)]


def _sign(graph: Graph, i: int) -> str:
    op = graph.operations[i]
    types = [None if v is None else str(graph.values[v].type) for v in (*op.reads, *op.writes)]
    return repr((op.op, _literals(op.args), sorted((k, _literals(v)) for k, v in op.kwargs.items()), types))


def _literals(argument: object) -> object:
    if isinstance(argument, Ref):
        return "%"
    if isinstance(argument, Number):
        return argument.text
    if isinstance(argument, (tuple, list)):
        return [_literals(item) for item in cast(Sequence[object], argument)]
    return argument
