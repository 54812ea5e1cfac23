"""Slots of a linked step, the memory of each slot, and the gaps in which a value can be paged.

A slot is everything that happens at one point: its recomputations and its operation. The forward/backward boundary is a
slot of its own, before the first operation of backward. Paged values leave and return between slots. A gap is the time
between two consecutive reads of a forward value.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatPage, Graph, held_outside, stays
from remate_runtime.format import PageMemory
from remate_runtime.link import BackwardStart, Computation, Linked, Run, Timeline, Update


class Gaps(NamedTuple):
    """Parallel arrays with one entry per gap.

    values: The value. nbytes: Its bytes. first: The first slot in which it can be away. read: The slot that reads it
    next.
    """

    values: np.ndarray
    nbytes: np.ndarray
    first: np.ndarray
    read: np.ndarray


class Slots(NamedTuple):
    """held: Peak bytes on the device in each slot. begins: Start of each slot in ns, without stalls. gaps: All gaps."""

    held: np.ndarray
    begins: np.ndarray
    gaps: Gaps


def slots(linked: Linked, timeline: Timeline) -> Slots:
    """Return slots and gaps of a step that has no pages."""
    graph, events = linked.graph, linked.events
    boundary, at = graph.backward_start, slots_of_events(linked)
    count = len(graph.operations) + 2
    held, durations = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for position, nbytes in enumerate(timeline.during):
        held[at[position]] = max(held[at[position]], nbytes)
    touched: dict[int, list[tuple[int, bool]]] = {}
    for position, event in enumerate(events):
        if isinstance(event, Computation):
            op = graph.operations[event.op]
            durations[at[position]] += op.ns
            for root in dict.fromkeys(graph.root[value] for value in op.reads):
                touched.setdefault(root, []).append((at[position], False))
            for value in op.writes:
                if value is not None:
                    touched.setdefault(value, []).append((at[position], True))
        elif isinstance(event, Update):
            touched.setdefault(graph.root[event.value], []).append((boundary, False))
    begins = np.concatenate(([0], np.cumsum(durations)[:-1]))
    return Slots(held, begins, _gaps(graph, touched))


def slots_of_events(linked: Linked) -> list[int]:
    """Return the slot of each event, by the event's position."""
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
    outside, gaps = held_outside(graph), list[tuple[int, int, int, int]]()
    for value, touches in touched.items():
        in_forward = 0 <= graph.values[value].producer < graph.backward_start
        if not in_forward or stays(graph, value, outside) or not graph.nbytes(value):
            continue
        for (previous, _), (following, written) in pairwise(touches):
            if not written and following - previous > 1:
                gaps.append((value, graph.nbytes(value), previous + 1, following))
    columns = np.array(gaps, dtype=np.int64).reshape(-1, 4).T
    return Gaps(*columns)


def flat_page(graph: Graph, value: int, to: PageMemory, gone: int, back: int, read: int) -> FlatPage:
    """Convert slots to a page statement.

    No operation names the forward/backward boundary. A value that leaves just before it leaves after its last read in
    forward.

    Args:
        graph: The step.
        value: The value that is paged.
        to: The memory that it is paged to.
        gone: The first slot in which it is away.
        back: The slot before which its copy back starts.
        read: The slot that reads it.
    """
    boundary = graph.backward_start

    def point(slot: int) -> int | None:
        return None if slot == boundary else slot - (slot > boundary)

    return FlatPage(value, to, None, point(gone), None if back == read else point(back))
