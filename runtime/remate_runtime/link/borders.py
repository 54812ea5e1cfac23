"""Where a step reads parameters that are gathered for the while: FSDP2 keeps a shard of each on every rank. Needs no
torch.

What FSDP2 does when a module is called, a step of the whole model does around the operations that read the module's
parameters: gather before the first and release behind the last in forward, gather again before the first in backward,
recomputations included, and reduce the gradients when all are delivered and nothing reads the parameters any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from ..flat_step.graph import Graph
from .events import Deliver, Event, Execution, Linked


class Border(msgspec.Struct, frozen=True):
    """What happens to a group of parameters before execution number `at` of a part of the step, counted from 0; behind
    the last one where there are no more."""

    at: int
    does: Literal["gather", "release", "gather again", "reduce"]
    group: int


Groups = Mapping[int, int]  # a parameter (value of the graph) -> number of its group


def forward_borders(graph: Graph, events: Iterable[Event], groups: Groups) -> tuple[Border, ...]:
    """Of the events of a forward."""
    first, last = dict[int, int](), dict[int, int]()
    for at, group in _reads(graph, events, groups):
        first.setdefault(group, at)
        last[group] = at
    found = [Border(at + 1, "release", group) for group, at in last.items()]
    found += [Border(at, "gather", group) for group, at in first.items()]
    return _in_order(found)


def backward_borders(linked: Linked, groups: Groups) -> tuple[tuple[Border, ...], ...]:
    """Of every part of backward that ends with a delivery. Groups that are busy in the last one are reduced by whoever
    ends backward: their last gradients arrive behind it."""
    graph, parts = linked.graph, _parts(linked)
    found: list[list[Border]] = [[] for _ in parts]
    gathered, last = set[int](), dict[int, int]()
    for number, (events, delivered) in enumerate(parts):
        for at, group in _reads(graph, events, groups):
            if group not in gathered:
                gathered.add(group)
                found[number].append(Border(at, "gather again", group))
            last[group] = number
        for gradient in delivered:
            group = groups.get(graph.gradients[gradient][0])
            if group is not None:
                last[group] = number
    for group, number in last.items():
        if number + 1 < len(parts):
            found[number + 1].append(Border(0, "reduce", group))
    return tuple(map(_in_order, found))


def _parts(linked: Linked) -> list[tuple[list[Event], tuple[int, ...]]]:
    """The events before each delivery, and what it delivers."""
    parts, events = list[tuple[list[Event], tuple[int, ...]]](), list[Event]()
    for event in linked.backward:
        if isinstance(event, Deliver):
            parts.append((events, event.gradients))
            events = []
        else:
            events.append(event)
    return parts


def _reads(graph: Graph, events: Iterable[Event], groups: Groups) -> Iterator[tuple[int, int]]:
    """(number of the execution, group) of everything that reads a parameter, or a view of one."""
    executions = (event for event in events if isinstance(event, Execution))
    for at, event in enumerate(executions):
        for value in graph.operations[event.op].reads:
            group = groups.get(graph.root[value])
            if group is not None:
                yield at, group


def _in_order(borders: Sequence[Border]) -> tuple[Border, ...]:
    """What frees memory comes first; then by group, the same on every rank."""
    return tuple(sorted(borders, key=lambda one: (one.at, one.does.startswith("gather"), one.group)))
