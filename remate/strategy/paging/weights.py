"""Which parameters and gradients could be away from the device, and when: what weight offloading chooses among.

The step keeps everything else, and runs nothing again. All parameters count for memory. Slots are those of `gaps`.
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
    """A parameter is away in slots [first, read), and if it is away between steps, from `last` on, too. A gradient
    (read: None) is away from `first` to `last`."""

    value: int
    nbytes: int
    first: int
    read: int | None
    last: int | None = None


class WeightedStep(NamedTuple):
    """graph: the step. held: by slot, bytes with all parameters on the device and all gradients where they are. begins:
    ns, by slot. absences: what may be chosen. to: the memory that everything goes to."""

    graph: Graph
    held: np.ndarray
    begins: np.ndarray
    absences: tuple[Absence, ...]
    to: PageMemory

    def covered(self, one: Absence) -> np.ndarray:
        """By slot, whether it is away there."""
        found = np.zeros(len(self.held), dtype=bool)
        if one.read is None:
            found[one.first : one.last] = True
            return found
        found[one.first : one.read] = True
        if one.last is not None:
            found[one.last :] = True
        return found

    def back(self, one: Absence) -> float:
        """ns that the lane takes to bring a parameter back."""
        lane = self.graph.lanes[self.to]
        return lane.latency + one.nbytes * 1e9 / lane.back

    def out(self, one: Absence) -> float:
        """ns that the lane takes to bring a gradient out, in which the step waits."""
        lane = self.graph.lanes[self.to]
        return lane.latency + one.nbytes * 1e9 / lane.out


def weighted_step(graph: Graph, to: PageMemory) -> WeightedStep:
    """What there is to choose in a step."""
    linked = link(graph)
    found = slots(linked, simulate(linked))
    held = found.held + parameter_bytes(graph)
    return WeightedStep(graph, held, found.begins, (*_parameters(linked), *_gradients(linked)), to)


def _parameters(linked: Linked) -> list[Absence]:
    graph, given = linked.graph, _delivered(linked)
    boundary, outside = graph.backward_start, held_outside(graph)
    reads: dict[int, list[int]] = {}
    for index, op in enumerate(graph.operations):
        if not op.view:
            for owner in dict.fromkeys(graph.root[value] for value in op.reads):
                if is_parameter(graph, owner):
                    reads.setdefault(owner, []).append(index + (index >= boundary))
    found: list[Absence] = []
    for value, at in sorted(reads.items()):
        if stays(graph, value, outside):
            continue
        nbytes = graph.nbytes(value)
        found.append(Absence(value, nbytes, 0, at[0], max(at[-1] + 1, given.get(value, 0))))
        for before, behind in pairwise(at):
            first = before + 1 + (before + 1 == boundary)  # no operation names the boundary
            if first < behind:
                found.append(Absence(value, nbytes, first, behind))
    return found


def _delivered(linked: Linked) -> dict[int, int]:
    """Where an optimizer in backward updates parameters: by parameter, the slot behind the one with the delivery."""
    graph, found = linked.graph, dict[int, int]()
    if graph.delivered != "consumed":
        return found
    for slot, event in zip(slots_of_events(linked), linked.events, strict=True):
        if isinstance(event, Deliver):
            found.update((graph.gradients[number][0], slot + 1) for number in event.gradients)
    return found


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
    found: list[Absence] = []
    for _, value in graph.gradients:
        owner = graph.root[value]
        if graph.values[owner].producer >= boundary and not stays(graph, value, outside) and owner in gone:
            found.append(Absence(value, graph.nbytes(value), complete[owner] + 1, None, gone[owner]))
    return found


def pages_of(step: WeightedStep, chosen: Sequence[Absence], aim: int) -> tuple[FlatPage, ...] | None:
    """Pages for what is to be away: parameters come back as late as the lane hides it, and as early as memory allows;
    None if `aim` bytes do not suffice."""
    held = step.held.copy()
    for one in chosen:
        held[step.covered(one)] -= one.nbytes
    if held.max() > aim:
        return None
    pages: list[FlatPage] = []
    busy = float("inf")  # the lane is, from then on
    for one in sorted((one for one in chosen if one.read is not None), key=lambda one: (-(one.read or 0), one.value)):
        assert one.read is not None
        end = min(float(step.begins[one.read]), busy)
        start = end - step.back(one)
        back = int(np.searchsorted(step.begins, start, side="right")) - 1
        back = max(min(back, one.read), one.first + (one.last is None))
        over = np.flatnonzero(held[back : one.read] + one.nbytes > aim)
        if len(over):
            back += int(over[-1]) + 1
        held[back : one.read] += one.nbytes
        busy = max(start, float(step.begins[back])) if back < one.read else min(busy, float(step.begins[one.read]))
        pages.append(_page(step, one, back))
    pages += [FlatPage(one.value, step.to) for one in chosen if one.read is None]
    return tuple(sorted(pages, key=lambda page: (page.value, page.gone is not None, page.gone or 0)))


def _page(step: WeightedStep, one: Absence, back: int) -> FlatPage:
    boundary = step.graph.backward_start

    def point(slot: int) -> int:
        return slot - (slot > boundary)

    assert one.read is not None
    gone = point(one.first) if one.last is None else None
    return FlatPage(one.value, step.to, None, gone, point(back))
