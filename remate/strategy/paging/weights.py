"""The parameters and gradients that weight offloading can page, and the slots in which they can be away.

The step keeps everything else and recomputes nothing. All parameters count as memory. `gaps` defines slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from remate_runtime.flat_step import FlatPage, Graph, held_outside, is_parameter, stays
from remate_runtime.format import PageMemory
from remate_runtime.link import Deliver, Linked, link, parameter_bytes, simulate

from .gaps import slots, slots_of_events


class Absence(NamedTuple):
    """An absence from the device.

    A parameter is away in slots [first, read). If it is also away between steps, it is away from `last` to the end. A
    gradient has no `read`, and is away in slots [first, last).
    """

    value: int
    nbytes: int
    first: int
    read: int | None
    last: int | None = None


class WeightedStep(NamedTuple):
    """A step and its possible absences.

    held: Peak bytes of each slot with all parameters and gradients on the device. begins: Start of each slot in ns.
    absences: All possible absences. to: The memory that they are paged to.
    """

    graph: Graph
    held: np.ndarray
    begins: np.ndarray
    absences: tuple[Absence, ...]
    to: PageMemory

    def covered(self, absence: Absence) -> np.ndarray:
        """Return a mask over slots: whether the absence covers the slot."""
        covered = np.zeros(len(self.held), dtype=bool)
        if absence.read is None:
            covered[absence.first : absence.last] = True
            return covered
        covered[absence.first : absence.read] = True
        if absence.last is not None:
            covered[absence.last :] = True
        return covered

    def back(self, absence: Absence) -> float:
        """Return the time of the copy back of a parameter, in ns."""
        lane = self.graph.lanes[self.to]
        return lane.latency + absence.nbytes * 1e9 / lane.back

    def out(self, absence: Absence) -> float:
        """Return the time of the copy out of a gradient, in ns. The step waits for it."""
        lane = self.graph.lanes[self.to]
        return lane.latency + absence.nbytes * 1e9 / lane.out


def weighted_step(graph: Graph, to: PageMemory) -> WeightedStep:
    """Return the possible absences of a step that pages to the memory `to`."""
    linked = link(graph)
    unpaged = slots(linked, simulate(linked))
    held = unpaged.held + parameter_bytes(graph)
    return WeightedStep(graph, held, unpaged.begins, (*_parameters(linked), *_gradients(linked)), to)


def _parameters(linked: Linked) -> list[Absence]:
    graph, delivered = linked.graph, _delivered(linked)
    boundary, outside = graph.backward_start, held_outside(graph)
    reads: dict[int, list[int]] = {}
    for index, op in enumerate(graph.operations):
        if not op.view:
            for owner in dict.fromkeys(graph.root[value] for value in op.reads):
                if is_parameter(graph, owner):
                    reads.setdefault(owner, []).append(index + (index >= boundary))
    absences: list[Absence] = []
    for value, at in sorted(reads.items()):
        if stays(graph, value, outside):
            continue
        nbytes = graph.nbytes(value)
        absences.append(Absence(value, nbytes, 0, at[0], max(at[-1] + 1, delivered.get(value, 0))))
        for previous, following in pairwise(at):
            first = previous + 1 + (previous + 1 == boundary)  # no operation names the boundary
            if first < following:
                absences.append(Absence(value, nbytes, first, following))
    return absences


def _delivered(linked: Linked) -> dict[int, int]:
    """For an optimizer in backward: the slot after the delivery of each parameter's gradient."""
    graph, following = linked.graph, dict[int, int]()
    if graph.delivered != "consumed":
        return following
    for slot, event in zip(slots_of_events(linked), linked.events, strict=True):
        if isinstance(event, Deliver):
            following.update((graph.gradients[number][0], slot + 1) for number in event.gradients)
    return following


def _gradients(linked: Linked) -> list[Absence]:
    graph, at, outside = linked.graph, slots_of_events(linked), held_outside(linked.graph)
    boundary, end = graph.backward_start, len(graph.operations) + 2
    complete: dict[int, int] = {}
    for index in range(boundary, len(graph.operations)):
        op = graph.operations[index]
        complete.update((graph.root[v], index + 1) for v in (*op.reads, *op.writes) if v is not None)
    gone = {
        graph.root[a.value]: end if a.death >= len(at) else at[a.death]
        for a in linked.allocations
        if a.value is not None and a.delivered is not None
    }
    absences: list[Absence] = []
    for _, value in graph.gradients:
        owner = graph.root[value]
        if graph.values[owner].producer >= boundary and not stays(graph, value, outside) and owner in gone:
            absences.append(Absence(value, graph.nbytes(value), complete[owner] + 1, None, gone[owner]))
    return absences


def pages_of(step: WeightedStep, chosen: Sequence[Absence], target: int) -> tuple[FlatPage, ...] | None:
    """Return the page statements of absences.

    A parameter returns just early enough for the lane to hide its copy, or as early as memory allows.

    Args:
        step: The step.
        chosen: The absences.
        target: Most bytes on the device.

    Returns:
        The statements, or None if the absences do not reach the target.
    """
    held = step.held.copy()
    for absence in chosen:
        held[step.covered(absence)] -= absence.nbytes
    if held.max() > target:
        return None
    pages: list[FlatPage] = []
    busy = float("inf")  # start of the earliest copy that is already placed
    parameters = [absence for absence in chosen if absence.read is not None]
    for absence in sorted(parameters, key=lambda absence: (-(absence.read or 0), absence.value)):
        assert absence.read is not None
        end = min(float(step.begins[absence.read]), busy)
        start = end - step.back(absence)
        back = int(np.searchsorted(step.begins, start, side="right")) - 1
        back = max(min(back, absence.read), absence.first + (absence.last is None))
        over = np.flatnonzero(held[back : absence.read] + absence.nbytes > target)
        if len(over):
            back += int(over[-1]) + 1
        held[back : absence.read] += absence.nbytes
        read_begins = float(step.begins[absence.read])
        busy = max(start, float(step.begins[back])) if back < absence.read else min(busy, read_begins)
        pages.append(_page(step, absence, back))
    pages += [FlatPage(absence.value, step.to) for absence in chosen if absence.read is None]
    return tuple(sorted(pages, key=lambda page: (page.value, page.gone is not None, page.gone or 0)))


def _page(step: WeightedStep, absence: Absence, back: int) -> FlatPage:
    """Return the statement of a parameter's absence whose copy back starts before slot `back`."""
    boundary = step.graph.backward_start

    def point(slot: int) -> int:
        return slot - (slot > boundary)

    assert absence.read is not None
    gone = point(absence.first) if absence.last is None else None
    return FlatPage(absence.value, step.to, None, gone, point(back))
