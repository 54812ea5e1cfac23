"""Applies the splits of a plan to the step of a file, in order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from ..errors import ScheduleError
from ..format.limits import MAX_ITEMS, MAX_OPERATIONS
from ..format.schedule import Schedule
from ..format.suggest import did_you_mean
from ..operators.rows import ROWS, RowRule
from .graph import Graph
from .layout import InstanceSpan
from .renumbering import without_unproduced
from .splitting import FlatSplit, split_step
from .statements import StatedSplit
from .tile_loss import WEIGHTED
from .tile_writer import TILE

_GROWTH = 8  # at most so many operations, views included, per tile of an operation
_EXACT = RowRule("elementwise")
_TILE = re.compile(TILE + "[0-9]+")


class SplitPlan(msgspec.Struct, frozen=True):
    """A step with its splits.

    Attributes:
        graph: The step.
        where: JSON pointer of each operation.
        places: The instances.
        reordered: Sources whose gradients depend on the order of sums over tiles.
        rounded: Outputs, and sources with other gradients, that follow from kernels which may round fewer rows
            differently.
    """

    graph: Graph
    where: tuple[str, ...]
    places: tuple[InstanceSpan, ...]
    reordered: tuple[int, ...] = ()
    rounded: tuple[int, ...] = ()


def split_by_plan(step: SplitPlan, splits: Iterable[StatedSplit], schedule: Schedule) -> SplitPlan:
    """Apply splits.

    Args:
        step: The step before.
        splits: The splits, in order.
        schedule: The file, with its costs and workspaces of tiles.

    Raises:
        ScheduleError: R072, R09x.
    """
    summed: set[str] = set()
    for split in splits:
        try:
            step = _applied(step, split, schedule, summed)
        except ScheduleError as fault:
            raise ScheduleError(fault.code, fault.message, fault.where or split.where, fault.hint) from None
    _check_produced(step)
    graph = without_unproduced(step.graph)
    sums = _depending(graph, {v for v, value in enumerate(graph.values) if value.name in summed})
    tiles = [op for op in graph.operations if TILE in op.id and ROWS.operators.get(op.op, _EXACT).rounds]
    tiles += (op for op in graph.operations if op.id.endswith(WEIGHTED))  # kernels may add products without rounding
    parts = _depending(graph, {v for op in tiles for v in op.writes if v is not None})
    reordered = tuple(source for source, value in graph.gradients if value in sums)
    others = (source for source, value in graph.gradients if value in parts and value not in sums)
    rounded = (*(v for v in graph.outputs if v in parts), *others)
    return replace(step, graph=graph, reordered=reordered, rounded=rounded)


def _check_produced(step: SplitPlan) -> None:
    """Raise ScheduleError if a tile reads a whole that no operation returns: its operation has an argument too many."""
    graph = step.graph
    produced = {v for op in graph.operations for v in op.writes}
    for op, where in zip(graph.operations, step.where, strict=True):
        for v in op.reads:
            if graph.values[v].kind == "op" and v not in produced:
                name = graph.values[v].name[:120]
                message = f"{op.id[:120]!r} reads {name!r}, which is split and not returned as a whole"
                raise ScheduleError("R090", message, where, f"leave the argument {name!r} out")


def _applied(step: SplitPlan, split: StatedSplit, schedule: Schedule, summed: set[str]) -> SplitPlan:
    graph, indices = step.graph, {op.id: i for i, op in enumerate(step.graph.operations)}
    members, home = list[int](), None
    for at, name in enumerate(split.operations):
        where = f"{split.where}/split/{at}"
        if name not in indices:
            tiles = any(other.startswith(name + TILE) for other in indices)
            message = f"{name[:120]!r} is {'already split' if tiles else 'no operation'}"
            hint = "name it in one split" if tiles else did_you_mean(name, indices, "name operations by their ids")
            raise ScheduleError("R090", message, where, hint)
        index = indices[name]
        place = next(p for p in step.places if p.leaf and (index in p.forward or index in p.backward))
        if home is not None and place.id != home.id:
            message = f"{name[:120]!r} belongs to {place.id[:120]!r}, the others to {home.id[:120]!r}"
            raise ScheduleError("R090", message, where, "write a split for each instance")
        members.append(index)
        home = place
    assert home is not None
    items = sum(1 + len(graph.operations[i].args) for i in members) * split.into * _GROWTH
    if len(graph.operations) + len(members) * split.into * _GROWTH > MAX_OPERATIONS or items > MAX_ITEMS:
        raise ScheduleError("R072", f"{len(members)} operations in {split.into} tiles each", split.where, "split less")
    costs, workspaces = (part.get(home.block_name, {}) for part in (schedule.costs, schedule.tile_workspaces))

    def known(name: str) -> tuple[int | None, int | None]:
        local = _TILE.sub(f"{TILE}{split.into}", name.removeprefix(f"{home.id}."))
        return costs.get(local), workspaces.get(local)

    split_graph = split_step(graph, FlatSplit(tuple(sorted(set(members))), split.into), known)
    summed |= split_graph.summed
    where = tuple(step.where[origin] for origin in split_graph.origins)
    tiles_of = Counter(split_graph.origins)
    starts = (0, *accumulate(tiles_of[i] for i in range(len(graph.operations))))
    places = tuple(_moved(place, starts) for place in step.places)
    return SplitPlan(split_graph.graph, where, places)


def _moved(place: InstanceSpan, starts: Sequence[int]) -> InstanceSpan:
    """Return a place in the new step. starts: for each operation before, how many there are before it now."""

    def span(old: range) -> range:
        return range(starts[old.start], starts[old.stop])

    return replace(place, forward=span(place.forward), backward=span(place.backward))


def _depending(graph: Graph, values: set[int]) -> set[int]:
    """Return these values and all values computed from them."""
    for op in graph.operations:
        if not values.isdisjoint(op.reads):
            values.update(v for v in op.writes if v is not None)
    return values
