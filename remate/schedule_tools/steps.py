"""Look-ups over the events of an opened schedule: when operations run, when values are live, and which operations read
them."""

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
    """A storage of the device that contains a value from position `start` through `end`."""

    start: int
    end: int
    allocation: Allocation


class StepPositions:
    """Look-ups that are each computed once, on first use."""

    def __init__(self, opened: Analysis) -> None:
        self.opened, self.graph = opened, opened.graph

    @cached_property
    def first_run(self) -> list[int]:
        """For each operation, the position of its first execution; -1 for an unused view."""
        positions = [-1] * len(self.graph.operations)
        for at, event in enumerate(self.opened.linked.events):
            if isinstance(event, Execution) and positions[event.op] < 0:
                positions[event.op] = at
        return positions

    @cached_property
    def spans(self) -> dict[int, list[ResidentSpan]]:
        """For each value that owns a storage, when it is in memory, in order."""
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
        """For each recomputed operation, the indices of its recomputations in `expanded.recomputes`."""
        indices: dict[int, list[int]] = {}
        for index, recompute in enumerate(self.opened.expanded.recomputes):
            indices.setdefault(recompute.op, []).append(index)
        return indices

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """For each value that owns a storage, the operations, without views, that read it or a view of it, in step
        order."""
        readers_of: dict[int, list[int]] = {}
        for index, op in enumerate(self.graph.operations):
            if not op.view:
                for root in dict.fromkeys(self.graph.root[value] for value in op.reads):
                    readers_of.setdefault(root, []).append(index)
        return readers_of

    def count(self, span: ResidentSpan) -> int:
        """Number of operations, with views, and boundaries during a span."""
        return sum(
            not isinstance(event, Free | Update | Deliver | Paging)
            for event in self.opened.linked.events[span.start : span.end + 1]
        )

    def results(self, operation: int) -> list[int]:
        """The values of an operation that own a storage."""
        return [v for v in self.graph.operations[operation].writes if v is not None and self.graph.root[v] == v]

    def nbytes(self, operation: int) -> int:
        return sum(self.graph.nbytes(value) for value in self.results(operation))

    def first_backward_read(self, operation: int) -> int:
        """The first backward operation that reads a result of `operation`; -1 if there is none."""
        backward_start = self.graph.backward_start
        reads = (
            index
            for value in self.results(operation)
            for index in self.readers.get(value, ())
            if index >= backward_start
        )
        return min(reads, default=-1)

    def alive(self, value: int, position: int) -> bool:
        """Whether `value`, or the base of a view, is in memory just before `position`. Sources always are."""
        root = self.graph.root[value]
        if self.graph.values[root].producer < 0:
            return True
        return any(span.start < position <= span.end for span in self.spans.get(root, ()))

    def closure(self, operation: int, before: int) -> list[int]:
        """`operation` and the forward operations to recompute with it before operation `before`, so that no value must
        be kept for it. In forward order."""
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
    """Position of each recomputation, in the order of `expanded.recomputes`."""
    return [at for at, event in enumerate(linked.events) if isinstance(event, RecomputeRun)]


def useful(linked: Linked) -> list[bool]:
    """For each recomputation, in the order of `expanded.recomputes`, whether something uses its result. Useless
    recomputations do not count as uses."""
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
    """Recomputations in execution order: by point, and stable at the same point."""
    return sorted(recomputes, key=lambda recompute: recompute.before)
