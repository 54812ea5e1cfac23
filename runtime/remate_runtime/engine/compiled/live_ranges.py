"""Derives from the linker's events after which computation each storage is freed.

Slots of this engine hold owners of storages, never views. A storage is freed when the linker frees the last value that
uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...flat_step.graph import Graph
from ...link.events import Computation, Event, Free, RecomputeRun, Run, View

Held = dict[int, set[int]]  # by owner of a storage: the values whose slots hold it


class Piece(NamedTuple):
    """A computation, and the owners of the storages that are freed after it."""

    event: Computation
    dead: tuple[int, ...]


def sources(graph: Graph) -> Held:
    """Return the values in slots before the step begins, by owner."""
    return {at: {at} for at, value in enumerate(graph.values) if value.producer < 0}


def pieces(graph: Graph, events: Iterable[Event], held: Held) -> list[Piece]:
    """Return the computations among `events`. held: the values in slots before them; updated to those after them."""
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
    """Empty the slots of `values`. Return the owners of the storages that this frees."""
    dead: list[int] = []
    for value in values:
        owner = graph.root[value]
        if owner in held:
            held[owner].discard(value)
            if not held[owner]:
                del held[owner]
                dead.append(owner)
    return dead
