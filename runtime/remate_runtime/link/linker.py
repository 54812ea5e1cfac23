"""The linker: derives the events of a step from its graph, recomputations and pages.

- A value lives from the run that produces it to its last read before its next run. Then `Free` empties its slot. A
  storage lives as long as a slot or the caller holds a tensor on it.
- Views are created on demand: before a read, if their base has been produced since.
- An operation writes over an argument if the argument's storage dies there and the operator has an in-place form.
- A random operation that is recomputed saves the generator's state before its first run.
- A gradient is delivered after the last event that touches its storage or reads its parameter, together with others.
- Paging reads a value when it leaves and writes it when it comes back, like an operation: views, frees and in-place
  runs follow. A paged parameter keeps its slot. It belongs to the model, and only its bytes leave.
- A buffer that the step updates gets its new value at the forward/backward boundary, from the latest run. If backward
  still reads the buffer, the step keeps a copy of the old contents.

This holds for any recomputations and pages. An edit of a plan can therefore change memory and time, but no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..errors import ScheduleError
from ..flat_step.graph import FlatPage, FlatRecompute, Graph
from ..flat_step.recompute_rules import check_recomputes
from ..format.limits import MAX_EVENTS
from .deliveries import copied, deliveries, freed_by_owner, gradient_views, last_touches
from .events import BackwardStart, Deliver, Event, Free, Linked, PageGone, PageOut, RecomputeRun, Run, Update, View
from .paging import BACKWARD_START, Moments, Move, Moves, moves
from .parameters import with_parameters
from .sharding import with_gathers
from .storages import Storages


def link(graph: Graph, recomputes: Sequence[FlatRecompute] = (), pages: Sequence[FlatPage] = ()) -> Linked:
    """Derive the events of a step.

    Args:
        graph: The step without its plan.
        recomputes: Its recomputations, in execution order.
        pages: Its pages.

    Raises:
        ScheduleError: R04x, an illegal recomputation or page.
    """
    touched, moments = last_touches(graph), _moments(graph, recomputes)
    paging = moves(graph, moments, pages)
    walk = _executions(graph, moments, paging.before, gradient_views(graph, touched))
    delivered = deliveries(graph, touched, walk.order, walk.backward_start_at)
    linked = _assemble(graph, walk, delivered, paging, *_liveness(graph, walk))
    return with_gathers(with_parameters(replace(linked, pages=tuple(pages))))


def _assemble(
    graph: Graph,
    walk: _Walk,
    delivered: Mapping[int, tuple[int, ...]],
    paging: Moves,
    frees: list[list[int]],
    preserved: frozenset[int],
) -> Linked:
    """Return the events with the storages that they allocate, share, write over, free and deliver."""
    book, events, operations, backward_start = Storages(graph), list[Event](), graph.operations, 0
    order, again = walk.order, walk.again
    hand_over = _HandOver(graph, book, events, paging.handed, delivered, _leaving(graph, walk, delivered, paging))
    last = {op: k for k, op in enumerate(order) if again[k] and operations[op].random}
    for k, index in enumerate(order):
        free, at = frees[k], len(events)
        if index == BACKWARD_START:
            backward_start = _backward_start(graph, book, events, free, preserved)
            hand_over.after(k)
            continue
        if index < BACKWARD_START:
            move = walk.move_at(index)
            if move.own:
                book.page(move.kind, move.value, move.to, at)
            events.append(move.kind(move.value, move.trip, move.to))
        elif (op := operations[index]).view:
            book.view(op)
            events.append(View(index))
        else:
            overwrites = book.overwritten(index, free)
            book.make(op, at, overwrites)
            if again[k]:
                drops = last.get(index) == k
                if op.random:
                    book.replay(index, at, drops)
                events.append(RecomputeRun(index, overwrites, drops))
            else:
                saves = index in last
                if saves:
                    book.save_state(index, at)
                events.append(Run(index, overwrites, saves))
        if free:
            for value in free:
                book.drop(value, at + 1)
            events.append(Free(tuple(free)))
        hand_over.after(k)
    return Linked(graph, tuple(events), backward_start, book.finish(len(events)))


class _HandOver:
    """Appends deliveries of gradients, and storages that leave the device until the next step.

    Args:
        graph: The step.
        book: Its storages.
        events: Its events so far.
        paged: Gradients that leave the device as soon as they are complete.
        delivered: Numbers of the gradients that are delivered after each execution.
        leaving: Moves after each execution.
    """

    def __init__(
        self,
        graph: Graph,
        book: Storages,
        events: list[Event],
        paged: Mapping[int, Move],
        delivered: Mapping[int, tuple[int, ...]],
        leaving: Mapping[int, Sequence[Move]],
    ) -> None:
        self._graph, self._book, self._events, self._paged = graph, book, events, paged
        self._delivered, self._leaving = delivered, leaving
        self._freed_by_owner, self._copies = freed_by_owner(graph), copied(graph)

    def after(self, k: int) -> None:
        """Append what follows execution k. An optimizer in backward updates a parameter before the parameter leaves."""
        if k not in self._delivered and k not in self._leaving:
            return
        moves, first = self._leaving.get(k, ()), self._graph.delivered != "consumed"
        self._leave([move for move in moves if first or move.own])
        self._deliver(self._delivered.get(k, ()))
        self._leave([move for move in moves if not first and not move.own])

    def _leave(self, moves: Sequence[Move]) -> None:
        """Append events for storages that leave until the next step, or go to their owners in another memory."""
        for move in moves:
            if move.own:
                self._events.append(PageOut(move.value, move.trip, move.to))
                self._book.hand_over(move.value, move.to, len(self._events))
            self._events.append(PageGone(move.value, move.trip, move.to))

    def _deliver(self, numbers: tuple[int, ...]) -> None:
        """Append the delivery of these gradients."""
        if not numbers:
            return
        graph, book, events = self._graph, self._book, self._events
        for number in numbers:
            source, value = graph.gradients[number]
            if value in self._paged:
                continue
            if graph.root[value] in self._freed_by_owner:
                book.deliver(value, len(events))
            if number in self._copies:
                book.copy(value, self._copies[number], len(events), graph.values[source].kind == "parameter")
        events.append(Deliver(numbers))


def _leaving(
    graph: Graph, walk: _Walk, delivered: Mapping[int, tuple[int, ...]], paging: Moves
) -> dict[int, list[Move]]:
    """Return by number of an execution what leaves after it.

    A parameter leaves after its last read, or after the delivery of its gradient if an optimizer in backward updates
    it. A gradient leaves when it is complete.
    """
    last: dict[int, int] = {}
    for at, index in enumerate(walk.order if paging.leaving or paging.handed else ()):
        if index == BACKWARD_START:
            last.update((graph.root[value], at) for _, value in graph.updates)
        elif index > BACKWARD_START:
            op = graph.operations[index]
            last.update((graph.root[value], at) for value in (*op.reads, *op.writes) if value is not None)
    for at, numbers in delivered.items() if graph.delivered == "consumed" else ():
        for source in (graph.gradients[number][0] for number in numbers):
            last[source] = max(at, last.get(source, at))
    leaving: dict[int, list[Move]] = {}
    for value, move in sorted({**paging.leaving, **paging.handed}.items()):
        leaving.setdefault(last[graph.root[value]], []).append(move)
    return leaving


def _backward_start(
    graph: Graph, book: Storages, events: list[Event], free: list[int], preserved: frozenset[int]
) -> int:
    """Append the forward/backward boundary and return its position."""
    book.hand_out()
    for buffer, value in graph.updates:
        if buffer in preserved:
            book.preserve(buffer, len(events))
        events.append(Update(buffer, value, buffer in preserved))
    at = len(events)
    for value in free:
        book.drop(value, at)
    book.receive(at)
    events.append(BackwardStart(tuple(free)))
    return at


def _moments(graph: Graph, recomputes: Sequence[FlatRecompute]) -> Moments:
    check_recomputes(graph, recomputes)
    before: dict[int, list[int]] = {}
    for recompute in recomputes:
        before.setdefault(recompute.before, []).append(recompute.op)
    order, starts = list[int](), list[int]()
    for index, op in enumerate(graph.operations):
        if index == graph.backward_start:
            order.append(BACKWARD_START)
        starts.append(len(order))
        order += before.get(index, ())
        if not op.view:
            order.append(index)
    if graph.backward_start == len(graph.operations):
        order.append(BACKWARD_START)
    return Moments(order, [*starts, len(order)])


def _executions(
    graph: Graph, moments: Moments, paging: Mapping[int, Sequence[Move]], complete: Mapping[int, list[int]]
) -> _Walk:
    """Return all executions in order, with views on demand.

    complete: gradients that are views, by the operation after which they are created.
    """
    walk, ends = _Walk(graph), {end: index for index, end in enumerate(moments.starts[1:]) if index in complete}
    for at, index in enumerate(moments.order):
        for gradient in complete.get(ends.get(at, -1), ()):
            walk.make_view(gradient)
        for move in paging.get(at, ()):
            walk.page(move)
        if index == BACKWARD_START:
            walk.backward_start()
        else:
            walk.execute(index)
    for gradient in (*complete.get(ends.get(len(moments.order), -1), ()), *(value for _, value in graph.gradients)):
        walk.make_view(gradient)
    return walk


class _Walk:
    """Executions so far, and for every view in a slot the live range of the base that it was created from."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order: list[int] = []
        self.again: list[bool] = []
        self.backward_start_at = 0
        self._ran = bytearray(len(graph.operations))
        self._born = [0] * len(graph.values)  # by owner of a storage: position of its latest run
        self._seen = [-1] * len(graph.values)  # by view: the birth of its base
        operations = graph.operations
        self._view = [v.producer >= 0 and operations[v.producer].view for v in graph.values]
        self._moves: list[Move] = []  # referred to by numbers below BACKWARD_START

    def page(self, move: Move) -> None:
        self.order.append(BACKWARD_START - 1 - len(self._moves))
        self.again.append(False)
        self._moves.append(move)
        if move.writes:  # a parameter and its views keep their slots
            self._born[move.value] = len(self.order)

    def move_at(self, index: int) -> Move:
        """Return the move of an entry of `order` below BACKWARD_START."""
        return self._moves[BACKWARD_START - 1 - index]

    def execute(self, index: int) -> None:
        op = self.graph.operations[index]
        for value in op.reads:
            if self._view[value]:
                self.make_view(value)
        self._append(index)
        for value in op.writes:
            if value is not None:
                self._born[value] = len(self.order)

    def make_view(self, value: int) -> None:
        """Execute the views that lead to `value`, if they are missing or older than their base."""
        values, operations = self.graph.values, self.graph.operations
        born = self._born[self.graph.root[value]]
        chain: list[int] = []
        while self._view[value] and self._seen[value] != born:
            chain.append(values[value].producer)
            value = operations[chain[-1]].reads[0]
        if len(self.order) + len(chain) > MAX_EVENTS:
            raise ScheduleError("R072", f"over {MAX_EVENTS} runs, recomputations and views created again")
        for index in reversed(chain):
            self._append(index)
            for result in operations[index].writes:
                if result is not None:
                    self._seen[result] = born

    def uses(self, index: int) -> tuple[Sequence[int], Sequence[int | None]]:
        """Return the values that an entry of `order` reads, and those that it writes."""
        if index > BACKWARD_START:
            op = self.graph.operations[index]
            return op.reads, op.writes
        move = self.move_at(index)
        if not move.own:
            return (), ()
        return ((), (move.value,)) if move.writes else ((move.value,), ())

    def backward_start(self) -> None:
        for value in self.graph.outputs:
            self.make_view(value)
        for _, value in self.graph.updates:
            self.make_view(value)
        self.backward_start_at = len(self.order)
        self.order.append(BACKWARD_START)
        self.again.append(False)
        for (
            buffer,
            _,
        ) in self.graph.updates:  # a view from before the boundary would show the new contents
            self._born[buffer] = len(self.order)

    def _append(self, index: int) -> None:
        self.order.append(index)
        self.again.append(bool(self._ran[index]))
        self._ran[index] = 1


def _liveness(graph: Graph, walk: _Walk) -> tuple[list[list[int]], frozenset[int]]:
    """Return for every execution the slots to empty after it, and the updated buffers that backward reads."""
    order, backward_start = walk.order, walk.backward_start_at
    live = {gradient for _, gradient in graph.gradients}
    updated = [buffer for buffer, _ in graph.updates]
    at_backward_start = {*graph.outputs, *(new for _, new in graph.updates), *updated}
    frees: list[list[int]] = [[] for _ in order]
    preserved: frozenset[int] = frozenset()
    read: set[int] = set(at_backward_start) | live
    for at in range(len(order) - 1, -1, -1):
        if at == backward_start:
            preserved = frozenset(buffer for buffer in updated if buffer in live)
            frees[at] = sorted(at_backward_start - live)
            live |= at_backward_start
            continue
        reads, writes = walk.uses(order[at])
        free = [value for value in reads if value not in live]
        for value in writes:
            if value is not None:
                if value in live:
                    live.discard(value)
                else:
                    free.append(value)
        frees[at] = free
        live.update(reads)
        read.update(reads)
    unread = (i for i, v in enumerate(graph.values) if v.producer < 0 and i not in read and v.kind != "tangent")
    frees[backward_start] = sorted({*frees[backward_start], *unread})
    return frees, preserved
