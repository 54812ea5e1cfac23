"""In which order recomputations are left out where the budget has room: those first that save most time for a byte that
is kept instead. Needs no torch."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ..flat_step.graph import FlatRecompute, Graph


class RecomputeGroup(NamedTuple):
    """ops: whose recomputations are left out together. figures: ns that these take, bytes that are kept instead, less
    what only they read."""

    ops: frozenset[int]
    figures: tuple[int, int]


def groups(graph: Graph, recomputes: Sequence[FlatRecompute]) -> list[RecomputeGroup]:
    """Every recomputation, in one group each. An operation goes with all that runs again for nothing else but it, or
    what went before."""
    return _Order(graph, recomputes).taken()


def ranked(graph: Graph, recomputes: Sequence[FlatRecompute]) -> list[RecomputeGroup]:
    """For every operation that runs again the group that it would be the first of, the best first. One may be in
    several."""
    return _Order(graph, recomputes).ranked()


class _Recompute(NamedTuple):
    """made, read: storages. needs: operations that make those again that it reads."""

    ns: int
    made: frozenset[int]
    read: frozenset[int]
    needs: frozenset[int]


class _Order:
    """Greedy: the best group is taken, and those that this changes are looked at again."""

    def __init__(self, graph: Graph, recomputes: Sequence[FlatRecompute]) -> None:
        self._graph = graph
        behind = (value for op in graph.operations[graph.backward_start :] for value in op.reads)
        self._read_anyway = self._roots((*behind, *graph.outputs))
        times = Counter(recompute.op for recompute in recomputes)
        self._recomputes = {op: self._recompute(op, times) for op in sorted(times)}
        self._left = set(times)
        self._users: dict[int, set[int]] = {op: set() for op in times}  # recomputes that read what it makes
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
        found: list[RecomputeGroup] = []
        current = {op: self._rank(op) for op in self._recomputes}
        heap = [(rank, op) for op, rank in current.items()]
        heapq.heapify(heap)
        while heap:
            rank, op = heapq.heappop(heap)
            if op not in self._left or rank != current[op]:
                continue
            group = self._group(op)
            self._left -= group.ops
            found.append(group)
            for other in self._beside(group.ops) & self._left:
                current[other] = self._rank(other)
                heapq.heappush(heap, (current[other], other))
        return found

    def ranked(self) -> list[RecomputeGroup]:
        return [self._group(op) for op in sorted(self._recomputes, key=lambda op: (self._rank(op), op))]

    def _rank(self, op: int) -> tuple[bool, float]:
        ns, nbytes = self._group(op).figures
        return nbytes > 0, -ns / max(1, nbytes)

    def _group(self, op: int) -> RecomputeGroup:
        """An operation with those that run again for nothing else."""
        ops, more = {op}, list(self._recomputes[op].needs)
        while more:
            other = more.pop()
            recompute = self._recomputes[other]
            if (
                other in self._left
                and not recompute.made & self._read_anyway
                and self._users[other] & self._left <= ops
            ):
                ops.add(other)
                more += recompute.needs
        kept = sum(map(self._graph.nbytes, self._recomputes[op].made))
        freed = sum(map(self._graph.nbytes, self._freed_without(ops)))
        return RecomputeGroup(frozenset(ops), (sum(self._recomputes[one].ns for one in ops), kept - freed))

    def _freed_without(self, ops: Collection[int]) -> set[int]:
        """Storages that are kept for recomputations of these alone."""
        read = {root for one in ops for root in self._recomputes[one].read}
        return {
            root
            for root in read - self._read_anyway
            if self._graph.values[root].kind == "op"
            and self._producer(root) not in self._left
            and self._readers[root] & self._left <= set(ops)
        }

    def _beside(self, ops: Collection[int]) -> set[int]:
        """Those for which it matters whether these run again."""
        near: set[int] = set()
        for one in ops:
            near |= self._users[one] | self._recomputes[one].needs
            near.update(*(self._readers[root] for root in self._recomputes[one].read))
        return near.union(*(self._users[one] for one in near))
