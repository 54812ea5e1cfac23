"""When paged values leave and come back: converts pages, which name points, to trips between executions.

A page covers the gap between two reads of a storage that contains `gone`. The gap ends with the first read after
`gone`. If no read follows, or the value is recomputed before it, the page has no effect. The copy out begins after the
run that produced the value, at the earliest. The storage is back before the read, at the latest.

Parameters are not copied out, since a step does not change them. Without `gone`, the page of a parameter covers the gap
between steps: the parameter is away when the step begins, is back before its first read, and leaves after its last read
(or after the delivery of its gradient, if an optimizer in backward updates it). Without any point, the page covers all
other gaps as well. A gradient has no gap: it leaves when it is complete, and its owner gets it in the other memory.

Does not require torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..flat_step.graph import FlatPage, Graph
from ..flat_step.page_rules import check_page, held_outside, is_paged_gradient, is_parameter
from ..format.vocabulary import PageMemory
from .events import PageBack, PageGone, PageOut, PageReady

_BETWEEN = -1  # `gone` of a parameter that is away between steps
BACKWARD_START = -1  # the forward/backward boundary, among indices of operations


class Moments(NamedTuple):
    """All executions, without views on demand.

    Attributes:
        order: Indices of operations, and BACKWARD_START.
        starts: By point, the number of its first moment. The last entry is the end of the step.
    """

    order: list[int]
    starts: list[int]


class Move(NamedTuple):
    """An action of a trip before a moment. own: the storage belongs to the step; that of a parameter does not."""

    kind: type[PageOut] | type[PageGone] | type[PageBack] | type[PageReady]
    value: int
    trip: int
    to: PageMemory
    own: bool

    @property
    def writes(self) -> bool:
        """Return whether it fills the slot of the value. Otherwise it reads the value, if that belongs to the step."""
        return self.own and self.kind is PageBack


class Moves(NamedTuple):
    """All moves of a step.

    Attributes:
        before: By number of a moment, in order.
        leaving: Parameters that are away between steps.
        handed: Gradients that leave when they are complete.
    """

    before: Mapping[int, list[Move]]
    leaving: Mapping[int, Move]
    handed: Mapping[int, Move]


class _Trip(NamedTuple):
    """A trip of a value: numbers of the moments before which its actions happen.

    `out` may move after an earlier trip of the value. `gone` of a parameter may be _BETWEEN.
    """

    value: int
    to: PageMemory
    out: int
    gone: int
    back: int
    read: int


class _Touch(NamedTuple):
    """A moment at which a storage is read or produced."""

    at: int
    written: bool


def moves(graph: Graph, moments: Moments, pages: Sequence[FlatPage]) -> Moves:
    """Return the moves of all pages. Of several pages for a gap, the first counts.

    Raises:
        ScheduleError: R048 or R049.
    """
    if not pages:
        return Moves({}, {}, {})
    held = held_outside(graph)
    for page in dict.fromkeys(pages):
        check_page(graph, page, held)
    touches, boundary = _touches(graph, moments, {page.value for page in pages}), moments.order.index(BACKWARD_START)
    trips: dict[tuple[int, int], _Trip] = {}
    gradients: dict[int, FlatPage] = {}
    for page in pages:
        if is_paged_gradient(graph, page.value):
            gradients.setdefault(page.value, page)
            continue
        trips_of = _of_parameter if is_parameter(graph, page.value) else _of_value
        for trip in trips_of(page, touches[page.value], moments.starts, boundary):
            trips.setdefault((trip.value, trip.read), trip)
    ordered = sorted(trips.values(), key=lambda trip: (trip.gone, trip.value))
    handed = {
        page.value: Move(PageOut, page.value, len(ordered) + number, page.to, True)
        for number, page in enumerate(sorted(gradients.values(), key=lambda page: page.value))
    }
    leaving = {
        trip.value: Move(PageGone, trip.value, number, trip.to, False)
        for number, trip in enumerate(ordered)
        if trip.gone == _BETWEEN
    }
    return Moves(_before(graph, ordered), leaving, handed)


def _before(graph: Graph, ordered: Sequence[_Trip]) -> dict[int, list[Move]]:
    moves: dict[int, list[Move]] = {}
    back: dict[int, int] = {}  # by value: end of its latest trip
    for kind in (PageOut, PageGone, PageBack, PageReady):
        for number, trip in enumerate(ordered):
            at, own = trip.read, not is_parameter(graph, trip.value)
            if kind is PageOut:
                if not own:
                    continue
                at = max(trip.out, back.get(trip.value, 0))
                back[trip.value] = trip.read + 1
            elif kind is PageGone:
                if trip.gone == _BETWEEN:
                    continue
                at = trip.gone
            elif kind is PageBack:
                at = trip.back
            moves.setdefault(at, []).append(Move(kind, trip.value, number, trip.to, own))
    return moves


def _touches(graph: Graph, moments: Moments, values: set[int]) -> dict[int, list[_Touch]]:
    touches: dict[int, list[_Touch]] = {value: [] for value in values}
    for at, index in enumerate(moments.order):
        if index == BACKWARD_START:
            read, written = [*graph.outputs, *(value for _, value in graph.updates)], ()
        else:
            read, written = graph.operations[index].reads, graph.operations[index].writes
        for root in dict.fromkeys(graph.root[value] for value in read):
            if root in touches:
                touches[root].append(_Touch(at, False))
        for value in written:
            if value in touches:
                touches[value].append(_Touch(at, True))
    return touches


def _of_value(page: FlatPage, touches: Sequence[_Touch], starts: Sequence[int], boundary: int) -> Iterator[_Trip]:
    """Yield the trip of a page of a result of forward, if it has an effect."""
    if page.gone is None:
        gone = 1 + max((touch.at for touch in touches if touch.at < boundary), default=boundary)
    else:
        gone = starts[page.gone]
    written = max((touch.at for touch in touches if touch.written and touch.at < gone), default=None)
    after = next((touch for touch in touches if touch.at >= gone), None)
    if written is None or after is None or after.written:
        return
    out = written + 1 if page.out is None else min(max(written + 1, starts[page.out]), gone)
    back = after.at if page.back is None else min(starts[page.back], after.at)
    if back > gone:
        yield _Trip(page.value, page.to, out, gone, back, after.at)


def _of_parameter(page: FlatPage, touches: Sequence[_Touch], starts: Sequence[int], boundary: int) -> Iterator[_Trip]:
    """Yield the trips of a page of a parameter."""
    reads, value, to = [touch.at for touch in touches], page.value, page.to
    gone = _BETWEEN if page.gone is None else starts[page.gone]
    after = next((at for at in reads if at >= gone), None)
    if after is None or (gone != _BETWEEN and reads[0] >= gone):
        return
    back = after if page.back is None else min(starts[page.back], after)
    if back > gone:
        yield _Trip(value, to, 0, gone, back, after)
    if page.gone is None and page.back is None:
        for before, following in pairwise(reads):
            if following > before + 1:
                yield _Trip(value, to, 0, before + 1, following, following)
