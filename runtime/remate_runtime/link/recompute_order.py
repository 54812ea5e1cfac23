"""The order in which recomputations are left out if the budget has room: most saved time per kept byte first.

Does not require torch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ..flat_step.graph import FlatRecompute, Graph


class RecomputeGroup(NamedTuple):
    """Operations whose recomputations are left out together.

    Attributes:
        ops: The operations.
        figures: Their time in ns, and the bytes that are kept instead, without those that only they read.
    """

    ops: frozenset[int]
    figures: tuple[int, int]


def groups(graph: Graph, recomputes: Sequence[FlatRecompute]) -> list[RecomputeGroup]:
    """Return groups that contain every recomputation once. Operations that run again only for a group belong to it."""
    return _Order(graph, recomputes).taken()


def ranked(graph: Graph, recomputes: Sequence[FlatRecompute]) -> list[RecomputeGroup]:
    """Return for every recomputed operation the group that it would start, the best first. Groups may overlap."""
    return _Order(graph, recomputes).ranked()


class _Recompute(NamedTuple):
    """A recomputed operation.

    Attributes:
        produced: Storages that it produces.
        read: Storages that it reads.
        needs: Operations that recompute what it reads.
    """

    ns: int
    produced: frozenset[int]
    read: frozenset[int]
    needs: frozenset[int]


class _Order:
    """A greedy order: take the best group, and rank again those that this affects."""

    def __init__(self, graph: Graph, recomputes: Sequence[FlatRecompute]) -> None:
        self._graph = graph
        read_by_backward = (value for op in graph.operations[graph.backward_start :] for value in op.reads)
        self._read_anyway = self._roots((*read_by_backward, *graph.outputs))
        times = Counter(recompute.op for recompute in recomputes)
        self._recomputes = {op: self._recompute(op, times) for op in sorted(times)}
        self._left = set(times)
        self._users: dict[int, set[int]] = {op: set() for op in times}  # recomputations that read its results
        self._readers: dict[int, set[int]] = {}  # the same by storage
        for op, recompute in self._recomputes.items():
            for need in recompute.needs:
                self._users[need].add(op)
            for root in recompute.read:
                self._readers.setdefault(root, set()).add(op)

    def _recompute(self, at: int, times: Counter[int]) -> _Recompute:
        op = self._graph.operations[at]
        read = self._roots(op.reads)
        needs = frozenset(map(self._producer, read)) & times.keys()
        return _Recompute(times[at] * op.ns, self._roots(op.writes), read, needs)

    def _roots(self, values: Iterable[int | None]) -> frozenset[int]:
        return frozenset(self._graph.root[value] for value in values if value is not None)

    def _producer(self, root: int) -> int:
        return self._graph.values[root].producer

    def taken(self) -> list[RecomputeGroup]:
        groups_in_order: list[RecomputeGroup] = []
        current = {op: self._rank(op) for op in self._recomputes}
        heap = [(rank, op) for op, rank in current.items()]
        heapq.heapify(heap)
        while heap:
            rank, op = heapq.heappop(heap)
            if op not in self._left or rank != current[op]:
                continue
            group = self._group(op)
            self._left -= group.ops
            groups_in_order.append(group)
            for other in self._beside(group.ops) & self._left:
                current[other] = self._rank(other)
                heapq.heappush(heap, (current[other], other))
        return groups_in_order

    def ranked(self) -> list[RecomputeGroup]:
        return [self._group(op) for op in sorted(self._recomputes, key=lambda op: (self._rank(op), op))]

    def _rank(self, op: int) -> tuple[bool, float]:
        ns, nbytes = self._group(op).figures
        return nbytes > 0, -ns / max(1, nbytes)

    def _group(self, op: int) -> RecomputeGroup:
        """Return an operation with those that run again only for it."""
        ops, more = {op}, list(self._recomputes[op].needs)
        while more:
            other = more.pop()
            recompute = self._recomputes[other]
            if (
                other in self._left
                and not recompute.produced & self._read_anyway
                and self._users[other] & self._left <= ops
            ):
                ops.add(other)
                more += recompute.needs
        kept = sum(map(self._graph.nbytes, self._recomputes[op].produced))
        freed = sum(map(self._graph.nbytes, self._freed_without(ops)))
        return RecomputeGroup(frozenset(ops), (sum(self._recomputes[member].ns for member in ops), kept - freed))

    def _freed_without(self, ops: Collection[int]) -> set[int]:
        """Return the storages that are kept only for recomputations of these operations."""
        read = {root for op in ops for root in self._recomputes[op].read}
        return {
            root
            for root in read - self._read_anyway
            if self._graph.values[root].kind == "op"
            and self._producer(root) not in self._left
            and self._readers[root] & self._left <= set(ops)
        }

    def _beside(self, ops: Collection[int]) -> set[int]:
        """Return the operations whose rank depends on whether these run again."""
        near: set[int] = set()
        for op in ops:
            near |= self._users[op] | self._recomputes[op].needs
            near.update(*(self._readers[root] for root in self._recomputes[op].read))
        return near.union(*(self._users[op] for op in near))
