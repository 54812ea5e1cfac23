"""A step with recomputations as a walk: a state is the next operation and the set of forward storages in memory.

From a state, one may run the next operation, run a forward operation again, or free a storage. Every legal list of
recomputations is such a walk, and every walk is a list of recomputations. Recomputations in the forward, several
recomputations of an operation, and operations that overwrite their arguments need no special case. It is the pebble
game of register allocation with recomputation (R. Sethi, Complete register allocation problems, SIAM J. Comput. 4,
1975) with a given order of first runs. Weights are bytes, and moves cost time.

Sets are bit masks of *items*: forward storages, saved states of generators, copies of buffers that the step updates.
The last two cannot be computed again. They are promised from the start, and their bytes count from the run, or the
forward/backward boundary, that creates them. Backward values live equally long in every walk, so they are a number of
bytes per operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..account import backward_holdings, levels
from ..instance import StepInstance
from ..problem import Problem

UPDATE = -1  # as an operation: forward has ended, buffers get their values
BACKWARD_START = -2  # as an operation: outputs go to the caller, tangents arrive


class State(NamedTuple):
    """A state of a walk.

    Attributes:
        point: Index in `Space.points` of the next operation.
        resident: Items in memory.
        returned: Outputs of the model whose value from the forward/backward boundary, held by the caller, a read still
            sees.
    """

    point: int
    resident: int
    returned: int


class StateMove(NamedTuple):
    """One execution.

    Attributes:
        op: The operation.
        need: Items that it reads.
        written: Items that it writes.
        victim: The item that it overwrites, or 0.
        fixed: Bytes held meanwhile beside resident items.
        time: ns.
    """

    op: int
    need: int
    written: int
    victim: int
    fixed: int
    time: int


def bits(mask: int) -> Iterator[int]:
    """Yield positions of set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def space_of(instance: StepInstance) -> Space:
    """Return the state space of a step."""
    return Space(instance.problem)


class Space:
    """A step for the search, as masks.

    Attributes:
        points: Operations that a walk runs in turn, with UPDATE and BACKWARD_START between forward and backward.
        size: Bytes by item.
        makers: By item, the operation that computes it again, or -1.
        wanted: By point, items computed before it that some later first run reads, or that must be in memory at the
            boundary or at the end.
        useful: By point, wanted items and items that they can be computed from.
        counted: By point, items whose bytes count there.
        beside: By operation, bytes held beside items, without its own results.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._items()
        self._masks()
        held = [(h.nbytes, h.first + (not h.given), h.last) for h in backward_holdings(problem)]
        self.beside = levels(len(problem.real), held)
        self._horizon()

    def _items(self) -> None:
        problem = self.problem
        self.bit = {s: 1 << k for k, s in enumerate(problem.storages)}
        self.size = [problem.size[s] for s in problem.storages]
        makers = (problem.producer[s] for s in problem.storages)
        self.makers = [-1 if f in problem.once else f for f in makers]
        self.states: dict[int, int] = {}  # by random forward operation: its saved generator state
        self.copies: dict[int, int] = {}  # by buffer that the step updates: its old contents
        for f in problem.forward:
            if problem.state[f]:
                self.states[f] = self._extra(problem.state[f])
        for buffer, nbytes in problem.copies.items():
            self.copies[buffer] = self._extra(nbytes)

    def _extra(self, nbytes: int) -> int:
        self.size.append(nbytes)
        self.makers.append(-1)
        return 1 << (len(self.size) - 1)

    def _masks(self) -> None:
        problem = self.problem
        self.reads = [self.mask(storages) for storages in problem.reads]
        self.writes = [self.mask(storages) for storages in problem.writes]
        # By operation: copies of buffers that a run after the forward/backward boundary reads.
        self.old = [sum(self.copies[buffer] for buffer in buffers) for buffers in problem.reads_of_buffers]
        # By operation: items that a recomputation needs, before the forward/backward boundary and after it.
        self.needs_early = [reads | self.states.get(f, 0) for f, reads in enumerate(self.reads)]
        self.needs_late = [early | old for early, old in zip(self.needs_early, self.old, strict=True)]
        self.returned = self.mask(problem.returned)
        self.at_backward_start = self.returned | self.mask(problem.until_backward_start)
        self.at_end = self.mask(problem.gradients)
        last = problem.backward_start - 1
        # Before a view that ends the forward, an operation may be recomputed.
        self.points = [i for i, real in enumerate(problem.real) if real or i == last]
        self.update = sum(i < problem.backward_start for i in self.points)
        self.points[self.update : self.update] = [UPDATE, BACKWARD_START]
        self.last = max((p for p, op in enumerate(self.points) if op >= 0), default=0)  # of the last operation

    def mask(self, storages: frozenset[int] | tuple[int, ...]) -> int:
        """Return storages of the forward as items."""
        return sum(self.bit[s] for s in storages if s in self.bit)

    def first(self, p: int) -> Iterator[StateMove]:
        """Yield ways to run the operation at point p: into new memory, or over one of its arguments."""
        problem, op = self.problem, self.points[p]
        if op == UPDATE:
            yield StateMove(UPDATE, self.reads_first(p), 0, 0, 0, 0)
            return
        if op == BACKWARD_START:
            yield StateMove(BACKWARD_START, self.reads_first(p), 0, 0, sum(nbytes for nbytes, _ in problem.tangents), 0)
            return
        need = self.reads_first(p)
        new = sum(problem.size[s] for s in problem.writes[op] if s not in self.bit)
        fixed = self.beside[op] + problem.workspace[op] + new
        for s in problem.may_overwrite[op]:
            if s in self.bit:
                if p != self.last or not self.bit[s] & self.at_end:
                    yield StateMove(op, need, self.writes[op], self.bit[s], fixed, 0)
            elif s not in problem.gradients and problem.readers[s][-1] == op:
                fixed -= problem.size[s]
                break
        yield StateMove(op, need, self.writes[op], 0, fixed, 0)

    def reads_first(self, p: int) -> int:
        """Return items that must be in memory for the operation at point p.

        From the last operation on, these include items needed at the end. From the last operation of forward on, they
        include items needed at the forward/backward boundary. Nothing runs again later.
        """
        op = self.points[p]
        kept = self.at_end & self.born[p] if p >= self.last else 0
        if p == self.update - 1:
            kept |= self.at_backward_start & self.born[p]
        if op < 0:
            return kept | (self.at_backward_start if op == UPDATE else self.returned)
        return kept | self.reads[op] | (self.old[op] if p > self.update else 0)

    def again(self, p: int, f: int) -> Iterator[StateMove]:
        """Yield ways to run forward operation f again at point p."""
        problem, written = self.problem, self.writes[f]
        fixed = self.beside[self.points[p]] + problem.workspace[f] + problem.state[f]
        for s in problem.may_overwrite[f]:
            if s in self.bit:
                yield StateMove(f, self.needs(p, f), written, self.bit[s], fixed, problem.time[f])
        yield StateMove(f, self.needs(p, f), written, 0, fixed, problem.time[f])

    def needs(self, p: int, f: int) -> int:
        """Return items that operation f reads when it runs again at point p."""
        return (self.needs_late if p >= self.update else self.needs_early)[f]

    def _horizon(self) -> None:
        """Set masks by point, from the last to the first."""
        points = self.points
        self.counted = [0] * (len(points) + 1)
        self.born = [0] * (len(points) + 1)
        counted = born = 0
        for p, op in enumerate(points):
            self.counted[p], self.born[p] = counted, born
            copies = sum(self.copies.values()) * (op == UPDATE)
            written = self.writes[op] | self.states.get(op, 0) if op >= 0 else copies
            counted |= written
            born |= written
        self.counted[-1], self.born[-1] = counted, born
        wanted = useful = self.at_end
        self.wanted = [0] * (len(points) + 1)
        self.useful = [0] * (len(points) + 1)
        for p in range(len(points), -1, -1):
            if p < len(points):
                wanted |= self.reads_first(p)
            useful |= self._sources(wanted & ~useful, useful)
            self.wanted[p], self.useful[p] = wanted & self.born[p], useful

    def _sources(self, items: int, known: int) -> int:
        """Return these items and all items that they can be computed from, without known ones."""
        items_known = items
        while items:
            low = items & -items
            items ^= low
            f = self.makers[low.bit_length() - 1]
            if f >= 0:
                more = (self.reads[f] | self.states.get(f, 0) | self.old[f]) & ~(items_known | known)
                items_known |= more
                items |= more
        return items_known

    def bytes_of(self, mask: int) -> int:
        size = self.size
        return sum(size[k] for k in bits(mask))

    def start(self) -> State:
        """Return the state before the first operation: nothing is in memory, but everything that could be kept is
        promised."""
        promised = sum(self.states.values()) + sum(self.copies.values())
        return State(0, promised & self.useful[0], 0)

    def missing(self, state: State) -> tuple[int, int] | None:
        """Return forward operations that must still run again in every walk from here, as items that they write, and
        their ns.

        The result is None if a needed item cannot be computed again.
        """
        available, p = state.resident | state.returned, state.point
        left, seen, time = self.wanted[p] & ~available, 0, 0
        while left:
            k = (left & -left).bit_length() - 1
            f = self.makers[k]
            if f < 0:
                return None
            seen |= self.writes[f]
            time += self.problem.time[f]
            left = (left | self.needs(p, f) & ~available) & ~seen
        return seen, time

    def after(self, state: State, move: StateMove, dropped: int = 0) -> State:
        """Return the state that follows when the items in `dropped` are freed and the move is made."""
        p, held = state.point, (state.resident & ~dropped | move.written) & ~move.victim
        if move.op == BACKWARD_START:
            return State(p + 1, held & ~self.returned & self.useful[p + 1], self.returned & self.useful[p + 1])
        if self.points[p] == move.op:
            return State(p + 1, held & self.useful[p + 1], state.returned & self.useful[p + 1])
        return State(p, held & self.useful[p], state.returned & ~move.written)

    def during(self, state: State, move: StateMove, held: int) -> int:
        """Return bytes held during a move. held: bytes of the items that are resident in the state."""
        p = state.point
        before = state.resident & self.counted[p]
        available = (state.resident | move.written) & ~move.victim & self.counted[p + (move.op == self.points[p])]
        return held + self.bytes_of(available & ~before) - self.bytes_of(before & ~available) + move.fixed

    def held_after(self, state: State, held: int, following: State) -> int:
        """Return bytes of the items that are resident in the following state."""
        before, available = (
            state.resident & self.counted[state.point],
            following.resident & self.counted[following.point],
        )
        return held + self.bytes_of(available & ~before) - self.bytes_of(before & ~available)
