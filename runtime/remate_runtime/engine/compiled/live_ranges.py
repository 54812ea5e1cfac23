"""Which storages die behind which computation, from the linker's events alone.

Slots of this engine hold the owners of storages, never views: a storage goes when the last slot that the linker lets
hold it is freed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...flat_step.graph import Graph
from ...link.events import Computation, Event, Free, RecomputeRun, Run, View

Held = dict[int, set[int]]  # by owner of a storage: the values whose slots hold it


class Piece(NamedTuple):
    """A computation, and the owners of the storages that are gone behind it."""

    event: Computation
    dead: tuple[int, ...]


def sources(graph: Graph) -> Held:
    """What slots hold before the step begins."""
    return {at: {at} for at, value in enumerate(graph.values) if value.producer < 0}


def pieces(graph: Graph, events: Iterable[Event], held: Held) -> list[Piece]:
    """The computations among `events`. held: as it is before them; it becomes what it is behind them."""
    row: list[Piece] = []
    for event in events:
        match event:
            case View():
                op = graph.operations[event.op]
                owner = graph.root[op.reads[0]]
                held[owner].update(value for value in op.writes if value is not None)
            case Free(values=values):
                dead = drop(graph, values, held)
                if row and dead:
                    row[-1] = row[-1]._replace(dead=(*row[-1].dead, *dead))
            case Run() | RecomputeRun():
                for value in graph.operations[event.op].writes:
                    if value is not None:
                        held[value] = {value}
                row.append(Piece(event, ()))
            case _:
                pass
    return row


def drop(graph: Graph, values: Iterable[int], held: Held) -> list[int]:
    """Empty the slots of `values`. Returns the owners of the storages that no slot holds any more."""
    dead: list[int] = []
    for value in values:
        owner = graph.root[value]
        if owner in held:
            held[owner].discard(value)
            if not held[owner]:
                del held[owner]
                dead.append(owner)
    return dead
