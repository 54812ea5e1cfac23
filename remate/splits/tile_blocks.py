"""The hierarchy of a split step: a block whose operations are split becomes a composite with a leaf per tile.

Forward runs the tiles in order and backward in reverse, so the forward and the backward of a tile are a leaf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from remate_runtime.flat_step import TILE, Expanded, Graph, InstanceSpan

from ..partition.hierarchy import BlockSpan

_NUMBER = re.compile(TILE + r"([0-9]+)(?=\.|$)")
_BETWEEN = -1  # in place of the number of a tile


class _TileRun(NamedTuple):
    """Consecutive operations [start, stop) of a tile, or between tiles."""

    tile: int
    start: int
    stop: int


def tile_blocks(expanded: Expanded) -> tuple[BlockSpan, ...]:
    """Return the blocks of an expanded schedule, outermost ones in forward order."""
    inner: dict[int, list[int]] = {}
    for at, place in enumerate(expanded.places):
        inner.setdefault(place.parent, []).append(at)
    return tuple(_block(expanded, at, inner) for at in inner.get(-1, ()))


def _block(expanded: Expanded, at: int, inner: Mapping[int, Sequence[int]]) -> BlockSpan:
    place = expanded.places[at]
    parts = tuple(_block(expanded, child, inner) for child in inner.get(at, ())) or _tiles(expanded.graph, place)
    forward, backward = ((span.start, span.stop) for span in (place.forward, place.backward))
    return BlockSpan(place.id, place.prefix, place.block_name, forward, backward, parts)


def _tiles(graph: Graph, place: InstanceSpan) -> tuple[BlockSpan, ...]:
    """Return a part per tile and per gap between tiles; () without tiles, or if backward does not mirror forward."""
    forward, backward = _runs(graph, place.forward), _runs(graph, place.backward)[::-1]
    tiles, mirrored = ([run.tile for run in runs if run.tile != _BETWEEN] for runs in (forward, backward))
    if not tiles or tiles != mirrored:
        return ()
    ahead = _with_gaps(forward, place.forward.start, backward=False)
    back = _with_gaps(backward, place.backward.stop, backward=True)
    return tuple(
        BlockSpan(f"{place.id}{TILE}{number}", place.prefix, place.block_name, *spans)
        for number, spans in enumerate(zip(ahead, back, strict=True))
        if any(start < stop for start, stop in spans)
    )


def _runs(graph: Graph, span: range) -> list[_TileRun]:
    """Return the runs of a span. What runs within a tile belongs to it."""
    numbers = [_number(graph.operations[i].id) for i in span]
    following = _BETWEEN
    after = [_BETWEEN] * len(numbers)  # by operation, the next tile
    for at in range(len(numbers) - 1, -1, -1):
        following = numbers[at] if numbers[at] != _BETWEEN else following
        after[at] = following
    for at in range(1, len(numbers)):
        if numbers[at] == _BETWEEN and numbers[at - 1] == after[at]:
            numbers[at] = after[at]
    runs: list[_TileRun] = []
    start = span.start
    for tile, members in groupby(numbers):
        stop = start + len(list(members))
        runs.append(_TileRun(tile, start, stop))
        start = stop
    return runs


def _number(name: str) -> int:
    match = _NUMBER.search(name)
    return int(match.group(1)) if match else _BETWEEN


def _with_gaps(runs: Sequence[_TileRun], cursor: int, *, backward: bool) -> list[tuple[int, int]]:
    """Return spans in which gaps and tiles alternate. Absent gaps are empty spans."""
    spans: list[tuple[int, int]] = []
    for run in runs:
        if run.tile != _BETWEEN and len(spans) % 2 == 0:
            spans.append((cursor, cursor))
        spans.append((run.start, run.stop))
        cursor = run.start if backward else run.stop
    return spans if len(spans) % 2 else [*spans, (cursor, cursor)]
