"""Look-ups over the events of an opened schedule: where operations run, where values live, what reads them."""

from __future__ import annotations

from functools import cached_property

import msgspec

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.link import (
    Allocation,
    BackwardStart,
    Deliver,
    Execution,
    Free,
    Linked,
    Paging,
    RecomputeRun,
    Run,
    Update,
)

from .analysis import Analysis


class ResidentSpan(msgspec.Struct, frozen=True):
    """A value held by a storage of the device from position `start` through `end`."""

    start: int
    end: int
    allocation: Allocation


class StepPositions:
    """Everything is computed on first use, once."""

    def __init__(self, opened: Analysis) -> None:
        self.opened, self.graph = opened, opened.graph

    @cached_property
    def first_run(self) -> list[int]:
        """By operation: position of its first execution; -1 for a view that nobody needs."""
        positions = [-1] * len(self.graph.operations)
        for at, event in enumerate(self.opened.linked.events):
            if isinstance(event, Execution) and positions[event.op] < 0:
                positions[event.op] = at
        return positions

    @cached_property
    def spans(self) -> dict[int, list[ResidentSpan]]:
        """By value that owns a storage: where it is held, in order."""
        spans_of: dict[int, list[ResidentSpan]] = {}
        for allocation, contents in self.opened.contents.items():
            ends = [start for start, _ in contents[1:]] + [allocation.death]
            for (start, value), end in zip(contents, ends, strict=True):
                if value is not None:
                    spans_of.setdefault(value, []).append(ResidentSpan(start, end - 1, allocation))
        for spans in spans_of.values():
            spans.sort(key=lambda span: span.start)
        return spans_of

    @cached_property
    def recomputes_of(self) -> dict[int, list[int]]:
        """By operation that is recomputed: the indices of its recomputations in `expanded.recomputes`."""
        indices: dict[int, list[int]] = {}
        for index, recompute in enumerate(self.opened.expanded.recomputes):
            indices.setdefault(recompute.op, []).append(index)
        return indices

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """By value that owns a storage: operations, views aside, that read it or a view of it, in step order."""
        readers_of: dict[int, list[int]] = {}
        for index, op in enumerate(self.graph.operations):
            if not op.view:
                for root in dict.fromkeys(self.graph.root[value] for value in op.reads):
                    readers_of.setdefault(root, []).append(index)
        return readers_of

    def count(self, span: ResidentSpan) -> int:
        """Operations, views among them, and turns during which a span lasts."""
        return sum(
            not isinstance(event, Free | Update | Deliver | Paging)
            for event in self.opened.linked.events[span.start : span.end + 1]
        )

    def made(self, operation: int) -> list[int]:
        """The values of an operation that own a storage."""
        return [v for v in self.graph.operations[operation].writes if v is not None and self.graph.root[v] == v]

    def nbytes(self, operation: int) -> int:
        return sum(self.graph.nbytes(value) for value in self.made(operation))

    def first_backward_read(self, operation: int) -> int:
        """The first backward operation that reads what `operation` makes; -1 if none does."""
        backward_start = self.graph.backward_start
        reads = (
            index for value in self.made(operation) for index in self.readers.get(value, ()) if index >= backward_start
        )
        return min(reads, default=-1)

    def alive(self, value: int, position: int) -> bool:
        """Whether `value` (or, for a view, its base) is held just before `position`. Sources always are."""
        root = self.graph.root[value]
        if self.graph.values[root].producer < 0:
            return True
        return any(span.start < position <= span.end for span in self.spans.get(root, ()))

    def closure(self, operation: int, before: int) -> list[int]:
        """`operation` and the forward operations that would be recomputed with it before operation `before`, so that no
        value needs to be kept for it; in forward order."""
        position = self.first_run[before]
        operations, todo = {operation}, [operation]
        while todo:
            for value in self.graph.operations[todo.pop()].reads:
                producer = self.graph.values[self.graph.root[value]].producer
                if (
                    0 <= producer < self.graph.backward_start
                    and producer not in operations
                    and not self.alive(value, position)
                ):
                    operations.add(producer)
                    todo.append(producer)
        return sorted(operations)


def recompute_positions(linked: Linked) -> list[int]:
    """Position of every recomputation, in the order of `expanded.recomputes`."""
    return [at for at, event in enumerate(linked.events) if isinstance(event, RecomputeRun)]


def useful(linked: Linked) -> list[bool]:
    """By recompute, in the order of `expanded.recomputes`: whether something needs its result, useless recomputations
    not counted."""
    graph = linked.graph
    live = {gradient for _, gradient in graph.gradients}
    flags: list[bool] = []
    for event in reversed(linked.events):
        if isinstance(event, BackwardStart):
            live.update(graph.outputs)
        elif isinstance(event, Update):
            live.add(event.value)
        if not isinstance(event, Execution):
            continue
        op = graph.operations[event.op]
        needed = any(value in live for value in op.writes if value is not None)
        if isinstance(event, RecomputeRun):
            flags.append(needed)
        if needed or isinstance(event, Run):
            live.difference_update(value for value in op.writes if value is not None)
            live.update(op.reads)
    return flags[::-1]


def ordered(recomputes: list[FlatRecompute]) -> list[FlatRecompute]:
    """As a schedule executes them: by point, and before one point in the order given."""
    return sorted(recomputes, key=lambda recompute: recompute.before)
