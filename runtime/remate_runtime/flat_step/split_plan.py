"""Splits of a plan, applied to the step of a file one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ..errors import ScheduleError
from ..format.limits import MAX_ITEMS, MAX_OPERATIONS
from ..format.suggest import did_you_mean
from ..operators.rows import ROWS, RowRule
from .graph import Graph
from .layout import InstanceSpan
from .splitting import FlatSplit, split_step
from .statements import StatedSplit
from .tile_writer import TILE

_GROWTH = 8  # operations that one tile of an operation becomes, at most, with views
_EXACT = RowRule("elementwise")
_TILE = re.compile(TILE + "[0-9]+")


class SplitPlan(msgspec.Struct, frozen=True):
    """A step whose splits are done. where: JSON pointer of every operation. reordered: sources whose gradients depend
    on the order in which sums over tiles are taken. rounded: outputs, and other sources whose gradients, are computed
    from what kernels may round otherwise for fewer rows."""

    graph: Graph
    where: tuple[str, ...]
    places: tuple[InstanceSpan, ...]
    reordered: tuple[int, ...] = ()
    rounded: tuple[int, ...] = ()


def split_by_plan(step: SplitPlan, splits: Iterable[StatedSplit], costs: Mapping[str, Mapping[str, int]]) -> SplitPlan:
    """Apply splits. costs: of a file. Raises ScheduleError R072, R09x."""
    summed: set[str] = set()
    for split in splits:
        try:
            step = _applied(step, split, costs, summed)
        except ScheduleError as fault:
            raise ScheduleError(fault.code, fault.message, fault.where or split.where, fault.hint) from None
    graph = step.graph
    sums = _depending(graph, {v for v, value in enumerate(graph.values) if value.name in summed})
    tiles = (op for op in graph.operations if TILE in op.id and ROWS.operators.get(op.op, _EXACT).rounds)
    parts = _depending(graph, {v for op in tiles for v in op.writes if v is not None})
    reordered = tuple(source for source, value in graph.gradients if value in sums)
    others = (source for source, value in graph.gradients if value in parts and value not in sums)
    return replace(step, reordered=reordered, rounded=(*(v for v in graph.outputs if v in parts), *others))


def _applied(
    step: SplitPlan, split: StatedSplit, costs: Mapping[str, Mapping[str, int]], summed: set[str]
) -> SplitPlan:
    graph, indices = step.graph, {op.id: i for i, op in enumerate(step.graph.operations)}
    found, home = list[int](), None
    for at, name in enumerate(split.operations):
        where = f"{split.where}/split/{at}"
        if name not in indices:
            tiles = any(other.startswith(name + TILE) for other in indices)
            message = f"{name[:120]!r} is {'split already' if tiles else 'no operation'}"
            hint = "name it in one split" if tiles else did_you_mean(name, indices, "name operations by their ids")
            raise ScheduleError("R090", message, where, hint)
        index = indices[name]
        place = next(p for p in step.places if p.leaf and (index in p.forward or index in p.backward))
        if home is not None and place.id != home.id:
            message = f"{name[:120]!r} is of {place.id[:120]!r}, the others are of {home.id[:120]!r}"
            raise ScheduleError("R090", message, where, "split the operations of each instance on their own")
        found.append(index)
        home = place
    assert home is not None
    items = sum(1 + len(graph.operations[i].args) for i in found) * split.into * _GROWTH
    if len(graph.operations) + len(found) * split.into * _GROWTH > MAX_OPERATIONS or items > MAX_ITEMS:
        raise ScheduleError("R072", f"{len(found)} operations in {split.into} tiles each", split.where, "split less")
    known = costs.get(home.block_name, {})

    def ns(name: str) -> int | None:
        return known.get(_TILE.sub(f"{TILE}{split.into}", name.removeprefix(f"{home.id}.")))

    made = split_step(graph, FlatSplit(tuple(sorted(set(found))), split.into), ns)
    summed |= made.summed
    where = tuple(step.where[origin] for origin in made.origins)
    places = tuple(_moved(place, made.origins, graph.backward_start) for place in step.places)
    return SplitPlan(made.graph, where, places)


def _moved(place: InstanceSpan, origins: Sequence[int], backward_start: int) -> InstanceSpan:
    def span(old: range) -> range:
        start = sum(origin < old.start for origin in origins)
        return range(start, start + sum(origin in old for origin in origins))

    return replace(place, forward=span(place.forward), backward=span(place.backward))


def _depending(graph: Graph, values: set[int]) -> set[int]:
    """These values, and all that is computed from them."""
    for op in graph.operations:
        if not values.isdisjoint(op.reads):
            values.update(v for v in op.writes if v is not None)
    return values
