"""A linked step as a row of slots, what each of them holds, and the gaps between two reads in which a value of forward
could be away.

A slot is all that happens at a point: the recomputations there and the operation; the forward/backward boundary is a
slot of its own, in front of the first operation of backward. What is paged leaves and comes back between slots.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatPage, Graph, held_outside, stays
from remate_runtime.format import PageMemory
from remate_runtime.link import BackwardStart, Computation, Linked, Run, Timeline, Update


class Gaps(NamedTuple):
    """By gap: the value; its bytes; the first slot in which it can be away, and the slot that reads it."""

    values: np.ndarray
    nbytes: np.ndarray
    first: np.ndarray
    read: np.ndarray


class Slots(NamedTuple):
    """held: by slot, the most bytes of the device. begins: ns of the step at which it begins, without waiting. gaps:
    see there."""

    held: np.ndarray
    begins: np.ndarray
    gaps: Gaps


def slots(linked: Linked, timeline: Timeline) -> Slots:
    """Of a step without pages."""
    graph, events = linked.graph, linked.events
    boundary, at = graph.backward_start, slots_of_events(linked)
    count = len(graph.operations) + 2
    held, took = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for position, nbytes in enumerate(timeline.during):
        held[at[position]] = max(held[at[position]], nbytes)
    touched: dict[int, list[tuple[int, bool]]] = {}
    for position, event in enumerate(events):
        if isinstance(event, Computation):
            op = graph.operations[event.op]
            took[at[position]] += op.ns
            for root in dict.fromkeys(graph.root[value] for value in op.reads):
                touched.setdefault(root, []).append((at[position], False))
            for value in op.writes:
                if value is not None:
                    touched.setdefault(value, []).append((at[position], True))
        elif isinstance(event, Update):
            touched.setdefault(graph.root[event.value], []).append((boundary, False))
    begins = np.concatenate(([0], np.cumsum(took)[:-1]))
    return Slots(held, begins, _gaps(graph, touched))


def slots_of_events(linked: Linked) -> list[int]:
    """By position of an event, the slot that it happens in."""
    graph, events = linked.graph, linked.events
    boundary = graph.backward_start
    at, slot = [0] * len(events), len(graph.operations) + 1
    for position in range(len(events) - 1, -1, -1):
        event = events[position]
        if isinstance(event, BackwardStart | Update):
            slot = boundary
        elif isinstance(event, Run):
            slot = event.op + (event.op >= boundary)
        at[position] = slot
    return at


def _gaps(graph: Graph, touched: dict[int, list[tuple[int, bool]]]) -> Gaps:
    outside, found = held_outside(graph), list[tuple[int, int, int, int]]()
    for value, touches in touched.items():
        in_forward = 0 <= graph.values[value].producer < graph.backward_start
        if not in_forward or stays(graph, value, outside) or not graph.nbytes(value):
            continue
        for (before, _), (behind, made) in pairwise(touches):
            if not made and behind - before > 1:
                found.append((value, graph.nbytes(value), before + 1, behind))
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Gaps(*columns)


def flat_page(graph: Graph, value: int, to: PageMemory, gone: int, back: int, read: int) -> FlatPage:
    """A page by slots. What leaves in front of the boundary does so behind its last read in forward: no operation names
    that point."""
    boundary = graph.backward_start

    def point(slot: int) -> int | None:
        return None if slot == boundary else slot - (slot > boundary)

    return FlatPage(value, to, None, point(gone), None if back == read else point(back))
