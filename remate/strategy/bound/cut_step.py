"""A step as the model of cuts sees it: with few small storages and chains of operations, the optimum is the same.

Two simplifications make the model two to three times smaller:

* *Negligible* storages, the smallest ones, are always available. The bound only falls, by little.
* An operation g joins the only reader f of its output s, if f reads nothing but s and what g reads, and the outputs of
  f need no more bytes than s. Instead of s, a schedule may keep the outputs of f, and run f when g runs. This is true
  only where f has run before every cut, so operations of steps without a backward are not joined.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ..problem import Problem

NEGLIGIBLE = 2e-4  # most bytes of negligible storages together, as a share of the baseline's peak


class CutStep(msgspec.Struct, frozen=True):
    """The part of a step that may run again after a cut.

    Attributes:
        problem: The whole step.
        operations: Forward operations that may be needed again, ascending, without those that have joined another.
        storages: Storages that may be needed again, ascending.
        reads: By operation, storages of `storages` that it reads.
        writes: By operation, storages of `storages` that it writes.
        readers: By storage, operations that read it, ascending.
        time: By operation, ns with those of the operations that have joined it.
        runs: By operation, those that have joined it, and itself, ascending.
        joined: By operation, the storages between the operations that have joined it.
    """

    problem: Problem
    operations: tuple[int, ...]
    storages: tuple[int, ...]
    reads: dict[int, tuple[int, ...]]
    writes: dict[int, tuple[int, ...]]
    readers: dict[int, tuple[int, ...]]
    time: dict[int, int]
    runs: dict[int, tuple[int, ...]]
    joined: dict[int, tuple[int, ...]]


def cut_step(problem: Problem, most: int) -> CutStep:
    """Return the simplified step.

    Args:
        problem: The step.
        most: Most bytes of negligible storages together.
    """
    operations, storages = useful(problem)
    small = _smallest(problem, storages, most)
    kept = [s for s in storages if s not in small]
    merged = _Merged(problem, operations, frozenset(kept))
    if problem.backward:
        for f in operations:
            while merged.join(f):
                pass
    remaining = [f for f in operations if merged.writes[f]]
    return CutStep(
        problem,
        tuple(remaining),
        tuple(s for s in kept if s in merged.storages),
        {f: merged.reads[f] for f in remaining},
        {f: merged.writes[f] for f in remaining},
        {s: tuple(merged.readers[s]) for s in merged.storages},
        {f: merged.time[f] for f in remaining},
        {f: merged.runs[f] for f in remaining},
        {f: merged.joined[f] for f in remaining},
    )


def useful(problem: Problem) -> tuple[list[int], list[int]]:
    """Return forward operations and storages that a recomputation after a cut could ever need."""
    first = problem.backward_start if problem.backward else 0
    operations: set[int] = set()
    storages: set[int] = set()
    for f in reversed(problem.forward):
        for s in problem.writes[f]:
            if s not in problem.pinned and any(i >= first or i in operations for i in problem.readers[s]):
                operations.add(f)
                storages.add(s)
    return sorted(operations), sorted(storages)


def _smallest(problem: Problem, storages: list[int], most: int) -> frozenset[int]:
    """Return the smallest of these storages, together at most `most` bytes."""
    small, total = set[int](), 0
    for s in sorted(storages, key=lambda s: (problem.size[s], s)):
        total += problem.size[s]
        if total > most:
            break
        small.add(s)
    return frozenset(small)


class _Merged:
    """The operations while they join one another."""

    def __init__(self, problem: Problem, operations: list[int], storages: Collection[int]) -> None:
        self.problem, self.storages = problem, set(storages)
        self.reads = {f: tuple(s for s in problem.reads[f] if s in storages) for f in operations}
        self.writes = {f: tuple(s for s in problem.writes[f] if s in storages) for f in operations}
        self.readers = {s: list(problem.readers[s]) for s in storages}
        self.time = {f: problem.time[f] for f in operations}
        self.runs: dict[int, tuple[int, ...]] = {f: (f,) for f in operations}
        self.joined: dict[int, tuple[int, ...]] = dict.fromkeys(operations, ())

    def join(self, f: int) -> bool:
        """Let an operation join f. Return whether there is one."""
        s = next((s for s in self.reads[f] if self._may_join(f, s)), None)
        if s is None:
            return False
        g = self.problem.producer[s]
        self.time[f] += self.time[g]
        self.runs[f] = tuple(sorted({*self.runs[g], *self.runs[f]}))
        self.joined[f] = (*self.joined[g], s, *self.joined[f])
        for u in self.reads[g]:
            self.readers[u] = sorted({f if i == g else i for i in self.readers[u]})
        self.reads[f] = tuple(dict.fromkeys([*(u for u in self.reads[f] if u != s), *self.reads[g]]))
        self.reads[g], self.writes[g] = (), ()
        self.storages.discard(s)
        return True

    def _may_join(self, f: int, s: int) -> bool:
        """Return whether the producer of s may join f."""
        problem, g = self.problem, self.problem.producer[s]
        return (
            self.readers[s] == [f]
            and self.writes[g] == (s,)
            and not {f, g} & problem.once
            and {u for u in self.reads[f] if u != s} <= set(self.reads[g])
            and sum(problem.size[u] for u in self.writes[f]) <= problem.size[s]
        )
