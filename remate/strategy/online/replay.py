"""A step replayed within a budget: what is not there when it is read runs again, what does not fit is freed.

It is the runtime of M. Kirisame et al., "Dynamic tensor rematerialization", ICLR 2021, as far as a policy sees it. The
program's own operations come in step order. Their inputs are made available, recursively, and locked; room is made for
their results. A storage that the program does not read any more is freed at once, and computed again if a recomputation
needs it. Results of operations that may not run again (the backward, for example) stay as long as the program reads
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from remate_runtime.flat_step import FlatRecompute

from ..base import Context, Proposal, Proposals, Request
from ..instance import StepInstance
from ..problem import Problem
from ..states.downward import downward

WORKSPACE = -1  # among storages: what an operation holds while it runs
THRASHING = 30  # executions per operation of the step, from which on a policy only runs in circles


class Memory(Protocol):
    """Where storages lie, what goes when they do not fit, and what is computed again first."""

    def wanted(self, replay: StepReplay, i: int) -> tuple[int, ...]:
        """Storages that are to be in memory, in this order, until operation i has run: what it reads, at least."""
        ...

    def room(self, replay: StepReplay, sizes: dict[int, int]) -> bool:
        """Make room for storages of these bytes, by `replay.evict`. False if there can be none."""
        ...

    def gone(self, s: int) -> None:
        """A storage has been freed."""
        ...


class StepReplay:
    """The state of a step during a replay.

    there: storages in memory. held: their bytes, and others that are fixed. locks: how many running executions read or
    write a storage. clock: ns so far; used[s]: when s was last read or written. evicted: storages that were computed
    and are not in memory. point: the operation of the program that runs next.
    """

    def __init__(self, problem: Problem, budget: int, memory: Memory, stopped: Callable[[], bool]) -> None:
        self.problem, self.budget, self.memory, self.stopped = problem, budget, memory, stopped
        self.there: set[int] = set()
        self.evicted: set[int] = set()
        self.locks: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.held = self.clock = self.point = 0
        self.recomputes: list[FlatRecompute] = []
        self.left = THRASHING * (len(problem.forward) + len(problem.backward))
        self._delivered: dict[int, list[int]] = {}  # by operation: gradients that are gone behind it
        for s in problem.delivery:
            self._delivered.setdefault(problem.held_until(s), []).append(s)
        self._reads_left = [sum(problem.real[i] for i in readers) for readers in problem.readers]

    def run(self) -> tuple[FlatRecompute, ...] | None:
        """Replay the step. None where a result cannot be made to fit, or the policy runs in circles."""
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

    def may_go(self, s: int) -> bool:
        """Whether storage s, which is in memory, can be freed and computed again."""
        problem, f = self.problem, self.problem.producer[s]
        if self.locks.get(s) or f >= problem.backward_start or f in problem.once:
            return False
        return s not in problem.pinned and s not in problem.until_backward_start

    def evict(self, s: int) -> None:
        """Let a storage go."""
        self.there.discard(s)
        self.evicted.add(s)
        self.held -= self.problem.size[s]
        self.memory.gone(s)

    def _evict_if_unread(self, s: int) -> None:
        problem = self.problem
        wanted = s in problem.pinned or (s in problem.until_backward_start and self.point < problem.backward_start - 1)
        if s in self.there and not self._reads_left[s] and not wanted and not self.locks.get(s):
            self.evict(s)

    def _execute(self, i: int) -> bool:
        """Run an operation of the program, after the producers of what it lacks, and of what those lack. Without
        recursion, which long chains would exhaust. A replay that fails is over, so nothing is unlocked."""
        problem = self.problem
        stack = [self._frame(i)]
        while stack:
            f, wanted, rest = stack[-1]
            missing = next((s for s in rest if s not in self.there), None)
            if missing is None:
                stack.pop()
                if not self._once(f, again=bool(stack)):
                    return False
                self._lock(wanted, -1)
                continue
            g = problem.producer[missing]
            if g >= problem.backward_start or g in problem.once:
                return False
            stack.append(self._frame(g))
        return True

    def _frame(self, i: int) -> tuple[int, tuple[int, ...], Iterator[int]]:
        """An operation that is to run, with what it wants, locked, and an iterator over that."""
        wanted = self.memory.wanted(self, i)
        self._lock(wanted, 1)
        return i, wanted, iter(wanted)

    def _once(self, i: int, again: bool) -> bool:
        """Run operation i, whose arguments are there and locked."""
        problem = self.problem
        sizes = {s: problem.size[s] for s in problem.writes[i] if s not in self.there}
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
                self.there.add(s)
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
    """What a policy comes to under the budget; where it fails, under ever greater ones. memories: of one budget in
    bytes; a later one is used where the earlier ones fail."""
    stopped = context.deadline.stopped

    def search(budget: int) -> Proposals[int | None]:
        for memory in memories:
            recomputes = StepReplay(instance.problem, budget, memory(budget), stopped).run()
            if recomputes is not None:
                return (yield Proposal(recomputes)).peak
        return None

    yield from downward(instance, request, context, search)
