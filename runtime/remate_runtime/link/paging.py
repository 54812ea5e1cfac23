"""When paged values leave and come back: pages, which name points, become trips between executions. Needs no torch.

A page is about one gap between two reads of a storage, the one that `gone` falls into: it ends with the first read
behind `gone`. If nothing reads the storage there, or the value is computed anew before it is read, the page has no
effect. The copy out begins behind the run that made the value, at the earliest, and the storage is back before the
read, at the latest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..flat_step.graph import FlatPage, Graph
from ..flat_step.page_rules import check_page, held_outside
from ..format.vocabulary import PageMemory
from .events import PageBack, PageGone, PageOut, PageReady

BACKWARD_START = -1  # stands for the forward/backward boundary among operation indices


class Moments(NamedTuple):
    """What executes, views that are made on demand apart. order: indices of operations, and BACKWARD_START. starts: by
    point, the number of the first moment there; one more for the end of the step."""

    order: list[int]
    starts: list[int]


class Move(NamedTuple):
    """What a trip does before a moment."""

    kind: type[PageOut] | type[PageGone] | type[PageBack] | type[PageReady]
    value: int
    trip: int
    to: PageMemory

    @property
    def writes(self) -> bool:
        """Whether it fills the slot of the value; else it reads it."""
        return self.kind is PageBack


class _Trip(NamedTuple):
    """Each a number of a moment, before which it happens. out may be moved behind an earlier trip of the value."""

    value: int
    to: PageMemory
    out: int
    gone: int
    back: int
    read: int


class _Touch(NamedTuple):
    """A moment at which a storage is read, or made."""

    at: int
    made: bool


def moves(graph: Graph, moments: Moments, pages: Sequence[FlatPage]) -> Mapping[int, list[Move]]:
    """By number of a moment, what pages do before it, in order: copies begin, storages leave, storages come back. Of
    pages about one gap the first counts. Raise ScheduleError R048 or R049."""
    if not pages:
        return {}
    held = held_outside(graph)
    for page in dict.fromkeys(pages):
        check_page(graph, page, held)
    touches, boundary = _touches(graph, moments, {page.value for page in pages}), moments.order.index(BACKWARD_START)
    trips: dict[tuple[int, int], _Trip] = {}
    for page in pages:
        trip = _trip(page, touches[page.value], moments.starts, boundary)
        if trip is not None:
            trips.setdefault((trip.value, trip.read), trip)
    found: dict[int, list[Move]] = {}
    back: dict[int, int] = {}  # by value: when its latest trip was over
    ordered = sorted(trips.values(), key=lambda trip: (trip.gone, trip.value))
    for kind in (PageOut, PageGone, PageBack, PageReady):
        for number, trip in enumerate(ordered):
            at = {PageOut: trip.out, PageGone: trip.gone, PageBack: trip.back, PageReady: trip.read}[kind]
            if kind is PageOut:
                at = max(at, back.get(trip.value, 0))
                back[trip.value] = trip.read + 1
            found.setdefault(at, []).append(Move(kind, trip.value, number, trip.to))
    return found


def _touches(graph: Graph, moments: Moments, values: set[int]) -> dict[int, list[_Touch]]:
    found: dict[int, list[_Touch]] = {value: [] for value in values}
    for at, index in enumerate(moments.order):
        if index == BACKWARD_START:
            read, made = [*graph.outputs, *(value for _, value in graph.updates)], ()
        else:
            read, made = graph.operations[index].reads, graph.operations[index].writes
        for root in dict.fromkeys(graph.root[value] for value in read):
            if root in found:
                found[root].append(_Touch(at, False))
        for value in made:
            if value in found:
                found[value].append(_Touch(at, True))
    return found


def _trip(page: FlatPage, touches: Sequence[_Touch], starts: Sequence[int], boundary: int) -> _Trip | None:
    """The trip of a page; None if it has no effect."""
    if page.gone is None:
        gone = 1 + max((touch.at for touch in touches if touch.at < boundary), default=boundary)
    else:
        gone = starts[page.gone]
    made = max((touch.at for touch in touches if touch.made and touch.at < gone), default=None)
    after = next((touch for touch in touches if touch.at >= gone), None)
    if made is None or after is None or after.made:
        return None
    out = made + 1 if page.out is None else min(max(made + 1, starts[page.out]), gone)
    back = after.at if page.back is None else min(starts[page.back], after.at)
    return _Trip(page.value, page.to, out, gone, back, after.at) if back > gone else None
