"""The workspaces of operations, measured at sizes all over a range.

An estimate that disagrees with a measurement reveals nothing about other sizes, and three numbers reveal little.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from remate_runtime.flat_step import Graph, Op
from remate_runtime.format import NON_FINITE, SizedType, is_object, is_tuple, parse_real, parse_size

from .samples import SizeRange, largest_corners, within

_ENDS = 3  # sizes whose ends are all combined
_MORE = 4  # sizes within the ranges, by chance (always the same ones)


def probes(ranges: Sequence[SizeRange], limits: Mapping[str, int]) -> list[dict[str, int]]:
    """Return sizes to measure: the planned ones, all combinations of the ends, and some sizes between them."""
    chance = random.Random(0)
    free = sorted(ranges, key=lambda dim: dim.min - dim.max)[:_ENDS]
    samples = [{dim.name: dim.planned for dim in ranges}]
    for ends in itertools.product((0, 1), repeat=len(free)):
        chosen = {dim.name: (dim.min, dim.max)[end] for dim, end in zip(free, ends, strict=True)}
        samples += [{dim.name: chosen.get(dim.name, (dim.min, dim.max)[max(ends)]) for dim in ranges}]
    samples += [{dim.name: chance.choice(dim.numbers()) for dim in ranges} for _ in range(_MORE)]
    if limits:
        samples += largest_corners(ranges, limits)
        samples = [within(ranges, limits, sizes) for sizes in samples]
    return [sizes for at, sizes in enumerate(samples) if sizes not in samples[:at]]


def disagreeing(estimated: Sequence[Graph], measured: Sequence[Sequence[int] | None]) -> list[int]:
    """Return the operations whose estimate differs from a measurement at some size. measured: by operation, where
    taken."""
    pairs = [
        (graph, workspaces) for graph, workspaces in zip(estimated, measured, strict=True) if workspaces is not None
    ]
    every = range(len(estimated[0].operations))
    return [at for at in every if any(graph.operations[at].workspace != workspaces[at] for graph, workspaces in pairs)]


def measured_at(
    graph: Graph, operations: Collection[int], sizes: Sequence[Mapping[str, int]], priced: Callable[[Graph], Graph]
) -> dict[int, tuple[int, ...]]:
    """Return the workspaces of some operations of a graph with named sizes, at these sizes. priced: adds costs to a
    graph."""
    measured = [priced(_at_size(graph, operations, at)).operations for at in sizes]
    return {at: tuple(every[at].workspace for every in measured) for at in operations}


def _at_size(graph: Graph, operations: Collection[int], sizes: Mapping[str, int]) -> Graph:
    """Return a graph with numbers in place of expressions in some of its operations.

    The others cost nothing: they become views, and their results have no producer.
    """
    chosen = [graph.operations[at] for at in operations]
    touched = {value for op in chosen for value in (*op.reads, *op.writes) if value is not None}
    touched |= {graph.root[value] for value in touched}
    values = tuple(
        replace(
            value,
            type=value.type.at(sizes) if at in touched and isinstance(value.type, SizedType) else value.type,
            producer=value.producer if value.producer < 0 or graph.operations[value.producer].view else -1,
        )
        for at, value in enumerate(graph.values)
    )
    every = tuple(
        _numbered(op, sizes) if at in operations else replace(op, view=True) for at, op in enumerate(graph.operations)
    )
    return replace(graph, values=values, operations=every)


def _numbered(op: Op, sizes: Mapping[str, int]) -> Op:
    return replace(op, args=_argument(op.args, sizes), kwargs=_argument(op.kwargs, sizes))


def _argument(argument: Any, sizes: Mapping[str, int]) -> Any:
    if is_tuple(argument):
        return tuple(_argument(item, sizes) for item in argument)
    if not is_object(argument):
        return argument
    if argument.keys() == {"size"}:
        return parse_size(argument["size"]).at(sizes)
    if argument.keys() == {"float"} and argument["float"] not in NON_FINITE:
        return parse_real(argument["float"]).at(sizes)
    return {key: _argument(item, sizes) for key, item in argument.items()}
