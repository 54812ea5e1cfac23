"""The borders at which a step gathers sharded parameters: FSDP2 keeps a shard of each on every rank. Does not require
torch.

FSDP2 acts when a module is called. A step of the whole model does the same around the operations that read the module's
parameters: gather before the first and release after the last in forward, gather again before the first in backward,
recomputations included, and reduce the gradients when all are delivered and nothing reads the parameters any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from ..flat_step.graph import Graph
from .events import Deliver, Event, Execution, Linked


class Border(msgspec.Struct, frozen=True):
    """An action on a group of parameters before execution number `at` of a part of the step, counted from 0.

    If the part has fewer executions, it happens after the last one.
    """

    at: int
    does: Literal["gather", "release", "gather again", "reduce"]
    group: int


Groups = Mapping[int, int]  # parameter (value of the graph) -> number of its group


def forward_borders(graph: Graph, events: Iterable[Event], groups: Groups) -> tuple[Border, ...]:
    """Return the borders of the events of a forward."""
    first, last = dict[int, int](), dict[int, int]()
    for at, group in _reads(graph, events, groups):
        first.setdefault(group, at)
        last[group] = at
    borders = [Border(at + 1, "release", group) for group, at in last.items()]
    borders += [Border(at, "gather", group) for group, at in first.items()]
    return _in_order(borders)


def backward_borders(linked: Linked, groups: Groups) -> tuple[tuple[Border, ...], ...]:
    """Return the borders of every part of backward that ends with a delivery.

    Groups in use in the last part are reduced by the code that ends backward: their last gradients arrive after it.
    """
    graph, parts = linked.graph, _parts(linked)
    borders: list[list[Border]] = [[] for _ in parts]
    gathered, last = set[int](), dict[int, int]()
    for number, (events, delivered) in enumerate(parts):
        for at, group in _reads(graph, events, groups):
            if group not in gathered:
                gathered.add(group)
                borders[number].append(Border(at, "gather again", group))
            last[group] = number
        for gradient in delivered:
            group = groups.get(graph.gradients[gradient][0])
            if group is not None:
                last[group] = number
    for group, number in last.items():
        if number + 1 < len(parts):
            borders[number + 1].append(Border(0, "reduce", group))
    return tuple(map(_in_order, borders))


def _parts(linked: Linked) -> list[tuple[list[Event], tuple[int, ...]]]:
    """Return the events before each delivery, and what it delivers."""
    parts, events = list[tuple[list[Event], tuple[int, ...]]](), list[Event]()
    for event in linked.backward:
        if isinstance(event, Deliver):
            parts.append((events, event.gradients))
            events = []
        else:
            events.append(event)
    return parts


def _reads(graph: Graph, events: Iterable[Event], groups: Groups) -> Iterator[tuple[int, int]]:
    """Yield (number of the execution, group) of everything that reads a parameter, or a view of one."""
    if not groups:
        return
    executions = (event for event in events if isinstance(event, Execution))
    for at, event in enumerate(executions):
        for value in graph.operations[event.op].reads:
            group = groups.get(graph.root[value])
            if group is not None:
                yield at, group


def _in_order(borders: Sequence[Border]) -> tuple[Border, ...]:
    """Sort borders: those that free memory first, then by group, the same on every rank."""
    return tuple(sorted(borders, key=lambda border: (border.at, border.does.startswith("gather"), border.group)))
