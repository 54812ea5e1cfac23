"""Costs and workspaces of tiles, as a file lists them: by block, and by id with the number of tiles.

All tiles of an operation have the cost of the slowest one, and the largest workspace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from remate_runtime.flat_step import TILE, Expanded, Graph, Op, Ref

from ..profile.devices import DEVICES, Device
from ..profile.small_products import lost_efficiency
from .statements import around

_TILE = re.compile(TILE + "[0-9]+")
_FILL = "aten.slice_scatter"  # runs in place: it writes a tile only
_FREE = "aten.empty.memory_format"  # reserves memory and writes nothing
Price = Callable[[Graph], Graph]  # adds costs to the operations of a graph


class TileCosts(NamedTuple):
    """ns and workspaces in bytes of everything that splits add to a step, by block and local id."""

    ns: dict[str, dict[str, int]]
    workspaces: dict[str, dict[str, int]]


def tile_costs(expanded: Expanded, price: Price, cost: str) -> TileCosts:
    """Return the costs and workspaces of everything that splits add to a step.

    Args:
        expanded: A schedule with splits.
        price: Adds costs to a graph.
        cost: Name of the costs. Estimates know nothing of small products, so their lost efficiency is added. Measured
            tiles cost at least their share.
    """
    graph = expanded.graph
    tiles = {name: split.into for split in expanded.splits for name in split.operations}
    added = [op for op in graph.operations if op.id.partition(TILE)[0] in tiles and not op.view]
    priced = price(_alone(graph, [_measurable(op) for op in added])).operations
    device, wholes = DEVICES.get(cost), {op.id: op for op in expanded.unsplit.operations}
    homes = {place.id: place.block_name for place in expanded.places if place.leaf}
    drawn = {op.id.partition(TILE)[0]: op.ns for op in priced if op.random}
    costs: dict[str, dict[str, int]] = {}
    workspaces: dict[str, dict[str, int]] = {}
    for op, alike in zip(added, priced, strict=True):
        name = op.id.partition(TILE)[0]
        home = next(home for home in around(name) if home in homes)
        local = _TILE.sub(f"{TILE}{tiles[name]}", op.id).removeprefix(f"{home}.")
        ns = 1 if op.op == _FREE else _slowed(alike.ns, graph, op, (expanded.unsplit, wholes[name]), device)
        ns = max(ns, _share(op, wholes[name].ns - drawn.get(name, 0), tiles[name])) if device is None else ns
        for by_block, number in ((costs, ns), (workspaces, alike.workspace)):
            block = by_block.setdefault(homes[home], {})
            block[local] = max(number, block.get(local, 0))
    return TileCosts(costs, _needed(workspaces, expanded))


def _needed(workspaces: Mapping[str, Mapping[str, int]], expanded: Expanded) -> dict[str, dict[str, int]]:
    """Return the workspaces that differ from what a file without them has: for tiles, that of the whole operation."""
    places = {place.block_name: place.id for place in expanded.places if place.leaf}
    whole = {op.id: op.workspace for op in expanded.unsplit.operations}

    def default(block: str, local: str) -> int:
        name, _, rest = f"{places[block]}.{local}".partition(TILE)
        return whole[name] if rest.isdecimal() else 0

    kept = {
        block: {local: nbytes for local, nbytes in by_block.items() if nbytes != default(block, local)}
        for block, by_block in workspaces.items()
    }
    return {block: by_block for block, by_block in kept.items() if by_block}


def merged(costs: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return both costs by block."""
    return {block: {**costs.get(block, {}), **more.get(block, {})} for block in dict.fromkeys((*costs, *more))}


def _alone(graph: Graph, operations: Iterable[Op]) -> Graph:
    """Return a graph with only these operations, whose arguments come from outside."""
    values = tuple(replace(value, producer=-1) for value in graph.values)
    return replace(graph, values=values, operations=tuple(operations))


def _measurable(op: Op) -> Op:
    """Return an operation that costs the same where this one runs on its own."""
    if op.op != _FILL:
        return op
    part = op.args[1]
    assert isinstance(part, Ref)
    return replace(op, op="aten.clone", args=(part,), reads=(part.value,), writes=(part.value,))


def _share(op: Op, ns: int, into: int) -> int:
    """Return the share of the whole operation's time; 0 for what only splits have, such as sums of tiles.

    A tile that seems to take less was measured while the machine was faster, or with data in caches that a step has to
    fetch. Of many splits, the search would take the one with most such tiles.

    Args:
        op: What a split adds.
        ns: Of the whole operation, without the draw of a mask, which is not divided.
        into: Number of tiles.
    """
    return max(0, -(-ns // into)) if op.id.rpartition(TILE)[2].isdecimal() and not op.view else 0


def _slowed(ns: int, graph: Graph, op: Op, whole: tuple[Graph, Op], device: Device | None) -> int:
    if device is None:
        return ns
    launch = min(ns, device.launch_ns)
    return launch + round((ns - launch) * lost_efficiency(graph, op, whole, device))
