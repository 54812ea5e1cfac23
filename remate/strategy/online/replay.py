"""Replay of a step within a budget: storages are evicted when memory is full, and recomputed when they are read.

This is the runtime of M. Kirisame et al., "Dynamic tensor rematerialization", ICLR 2021, as a policy sees it. The
operations of the program run in step order. The replay recomputes their missing inputs recursively, locks the inputs,
and makes room for the results. It frees a storage after the program's last read of it, and recomputes it if a later
recomputation needs it. Results of operations that cannot run again, such as those of backward, stay until the program's
last read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from remate_runtime.flat_step import FlatRecompute

from ..base import Context, Proposal, Proposals, Request
from ..instance import StepInstance
from ..problem import Problem
from ..states.downward import downward

WORKSPACE = -1  # a storage number: the workspace of the running operation
THRASHING = 30  # executions per operation of the step after which a replay stops


class Memory(Protocol):
    """A policy: where storages are placed, what is evicted, and what is recomputed first."""

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """Return the storages to lock until operation i has run, in the order to recompute them.

        They include everything that the operation reads.
        """
        ...

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Call `replay.evict` until storages of these bytes fit. Return False if they cannot fit."""
        ...

    def gone(self, s: int) -> None:
        """Note that a storage was freed."""
        ...


class StepReplay:
    """The state of a step during a replay.

    Attributes:
        resident: Storages in memory.
        held: Bytes of these storages and of tangents.
        locks: By storage, the number of running operations that read or write it.
        clock: ns so far.
        used: By storage, the clock at its last read or write.
        evicted: Storages that were computed and are not in memory.
        point: The operation of the program that runs next.
        recomputes: The recomputations so far.
        left: Executions until the replay counts as thrashing.
    """

    def __init__(self, problem: Problem, budget: int, memory: Memory, stopped: Callable[[], bool]) -> None:
        self.problem, self.budget, self.memory, self.stopped = problem, budget, memory, stopped
        self.resident: set[int] = set()
        self.evicted: set[int] = set()
        self.locks: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.held = self.clock = self.point = 0
        self.recomputes: list[FlatRecompute] = []
        self.left = THRASHING * (len(problem.forward) + len(problem.backward))
        self._delivered: dict[int, list[int]] = {}  # by operation: gradients that are delivered after it
        for s in problem.delivery:
            self._delivered.setdefault(problem.held_until(s), []).append(s)
        self._reads_left = [sum(problem.real[i] for i in readers) for readers in problem.readers]

    def run(self) -> tuple[FlatRecompute, ...] | None:
        """Replay the step. Return its recomputations, or None if a result cannot fit or the policy thrashes."""
        problem = self.problem
        for i, real in enumerate(problem.real):
            self.point = i
            self.held += sum(b for b, _ in problem.tangents) if i == problem.backward_start else 0
            if real:
                if not self._execute(i):
                    return None
                for s in problem.reads[i]:
                    self._reads_left[s] -= 1
                for s in (*problem.reads[i], *problem.writes[i]):
                    self._evict_if_unread(s)
            for s in self._delivered.get(i, ()):
                self.evict(s)
            self.held -= sum(b for b, last in problem.tangents if last == i)
        return tuple(self.recomputes)

    def evictable(self, s: int) -> bool:
        """Return whether a resident storage can be freed and recomputed."""
        problem, f = self.problem, self.problem.producer[s]
        if self.locks.get(s) or f >= problem.backward_start or f in problem.once:
            return False
        return s not in problem.pinned and s not in problem.until_backward_start

    def evict(self, s: int) -> None:
        """Free a storage."""
        self.resident.discard(s)
        self.evicted.add(s)
        self.held -= self.problem.size[s]
        self.memory.gone(s)

    def _evict_if_unread(self, s: int) -> None:
        problem = self.problem
        wanted = s in problem.pinned or (s in problem.until_backward_start and self.point < problem.backward_start - 1)
        if s in self.resident and not self._reads_left[s] and not wanted and not self.locks.get(s):
            self.evict(s)

    def _execute(self, i: int) -> bool:
        """Recompute the missing inputs of an operation of the program, transitively, and run it.

        An explicit stack takes the place of recursion, because chains can be long. A failure ends the replay, so locks
        remain.
        """
        problem = self.problem
        stack = [self._frame(i)]
        while stack:
            f, wanted, rest = stack[-1]
            missing = next((s for s in rest if s not in self.resident), None)
            if missing is None:
                stack.pop()
                if not self._run_operation(f, again=bool(stack)):
                    return False
                self._lock(wanted, -1)
                continue
            g = problem.producer[missing]
            if g >= problem.backward_start or g in problem.once:
                return False
            stack.append(self._frame(g))
        return True

    def _frame(self, i: int) -> tuple[int, tuple[int, ...], Iterator[int]]:
        """Lock the storages that an operation needs. Return it, these storages, and an iterator over them."""
        wanted = self.memory.wanted(self, i)
        self._lock(wanted, 1)
        return i, wanted, iter(wanted)

    def _run_operation(self, i: int, again: bool) -> bool:
        """Run operation i, whose arguments are resident and locked."""
        problem = self.problem
        sizes = {s: problem.size[s] for s in problem.writes[i] if s not in self.resident}
        sizes[WORKSPACE] = problem.workspace[i]
        self.left -= 1
        self._lock(problem.writes[i], 1)
        if self.left < 0 or self.stopped() or not self.memory.room(self, sizes):
            return False
        self.clock += problem.time[i]
        if again:
            self.recomputes.append(FlatRecompute(i, self.point))
        for s in sizes:
            if s != WORKSPACE:
                self.resident.add(s)
                self.evicted.discard(s)
                self.held += problem.size[s]
        for s in (*problem.reads[i], *problem.writes[i]):
            self.used[s] = self.clock
        self.memory.gone(WORKSPACE)
        self._lock(problem.writes[i], -1)
        return True

    def _lock(self, storages: tuple[int, ...], by: int) -> None:
        for s in storages:
            self.locks[s] = self.locks.get(s, 0) + by


def replayed(
    instance: StepInstance, request: Request, context: Context, *memories: Callable[[int], Memory]
) -> Proposals[None]:
    """Propose the replay within the budget, or within larger budgets if it fails.

    Args:
        instance: The step.
        request: The request.
        context: Deadline and progress.
        memories: Policies, as functions of a budget in bytes. A later policy runs if the earlier policies fail.
    """
    stopped = context.deadline.stopped

    def search(budget: int) -> Proposals[int | None]:
        for memory in memories:
            recomputes = StepReplay(instance.problem, budget, memory(budget), stopped).run()
            if recomputes is not None:
                return (yield Proposal(recomputes)).peak
        return None

    yield from downward(instance, request, context, search)
