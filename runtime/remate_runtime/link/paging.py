"""When paged values leave and come back: pages, which name points, become trips between executions. Needs no torch.

A page is about one gap between two reads of a storage, the one that `gone` falls into: it ends with the first read
behind `gone`. If nothing reads the storage there, or the value is computed anew before it is read, the page has no
effect. The copy out begins behind the run that made the value, at the earliest, and the storage is back before the
read, at the latest.

Of a parameter nothing is copied out: a step leaves it as it is. Without `gone` its page is about the gap between steps:
it is away when the step begins, back before its first read, and leaves behind its last read (where an optimizer in
backward updates it, behind the delivery of its gradient); without any point, about all other gaps, too. A gradient has
no gap: it leaves when it is complete, and its owner gets it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..flat_step.graph import FlatPage, Graph
from ..flat_step.page_rules import check_page, held_outside, is_paged_gradient, is_parameter
from ..format.vocabulary import PageMemory
from .events import PageBack, PageGone, PageOut, PageReady

_BETWEEN = -1  # when a parameter leaves that is away between steps
BACKWARD_START = -1  # stands for the forward/backward boundary among operation indices


class Moments(NamedTuple):
    """What executes, views that are made on demand apart. order: indices of operations, and BACKWARD_START. starts: by
    point, the number of the first moment there; one more for the end of the step."""

    order: list[int]
    starts: list[int]


class Move(NamedTuple):
    """What a trip does before a moment. own: the storage is the step's; a parameter is not, and keeps its slot."""

    kind: type[PageOut] | type[PageGone] | type[PageBack] | type[PageReady]
    value: int
    trip: int
    to: PageMemory
    own: bool

    @property
    def writes(self) -> bool:
        """Whether it fills the slot of the value; else it reads it, if it is the step's own."""
        return self.own and self.kind is PageBack


class Moves(NamedTuple):
    """What pages do in a step. before: by number of a moment, in order. leaving: parameters that are away between
    steps; handed: gradients that leave when they are complete."""

    before: Mapping[int, list[Move]]
    leaving: Mapping[int, Move]
    handed: Mapping[int, Move]


class _Trip(NamedTuple):
    """Each a number of a moment, before which it happens. out may be moved behind an earlier trip of the value. Of a
    parameter, gone may be _BETWEEN steps."""

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


def moves(graph: Graph, moments: Moments, pages: Sequence[FlatPage]) -> Moves:
    """What pages do: copies begin, storages leave, storages come back. Of pages about one gap the first counts. Raise
    ScheduleError R048 or R049."""
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
        found = _of_parameter if is_parameter(graph, page.value) else _of_value
        for trip in found(page, touches[page.value], moments.starts, boundary):
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
    found: dict[int, list[Move]] = {}
    back: dict[int, int] = {}  # by value: when its latest trip was over
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
            found.setdefault(at, []).append(Move(kind, trip.value, number, trip.to, own))
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


def _of_value(page: FlatPage, touches: Sequence[_Touch], starts: Sequence[int], boundary: int) -> Iterator[_Trip]:
    """The trip of a page, if it has an effect."""
    if page.gone is None:
        gone = 1 + max((touch.at for touch in touches if touch.at < boundary), default=boundary)
    else:
        gone = starts[page.gone]
    made = max((touch.at for touch in touches if touch.made and touch.at < gone), default=None)
    after = next((touch for touch in touches if touch.at >= gone), None)
    if made is None or after is None or after.made:
        return
    out = made + 1 if page.out is None else min(max(made + 1, starts[page.out]), gone)
    back = after.at if page.back is None else min(starts[page.back], after.at)
    if back > gone:
        yield _Trip(page.value, page.to, out, gone, back, after.at)


def _of_parameter(page: FlatPage, touches: Sequence[_Touch], starts: Sequence[int], boundary: int) -> Iterator[_Trip]:
    """The same of a parameter."""
    reads, value, to = [touch.at for touch in touches], page.value, page.to
    gone = _BETWEEN if page.gone is None else starts[page.gone]
    after = next((at for at in reads if at >= gone), None)
    if after is None or (gone != _BETWEEN and reads[0] >= gone):
        return
    back = after if page.back is None else min(starts[page.back], after)
    if back > gone:
        yield _Trip(value, to, 0, gone, back, after)
    if page.gone is None and page.back is None:
        for before, behind in pairwise(reads):
            if behind > before + 1:
                yield _Trip(value, to, 0, before + 1, behind, behind)
