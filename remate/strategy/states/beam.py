"""Beam search over the states of `space`, from the first operation to the last: recomputations for a step of any size.

A layer has at most `width` states with the same next operation: those with the least estimated time. An operation whose
arguments are in memory runs. Otherwise the operations that compute the missing arguments run again first, earliest or
latest operation first. If something does not fit, items are freed in the order of their cost of recomputation, over
their bytes and, to a power, the distance of their next use: the rule of DTR (M. Kirisame et al., Dynamic tensor
rematerialization, 2021) with the future known, as in L. Belady's rule (1966). One state per layer is a greedy pass over
the step; wider layers keep alternatives that a greedy pass would have to guess.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from remate_runtime.flat_step import FlatRecompute

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..instance import StepInstance
from ..local.polish import polish
from .downward import downward
from .space import UPDATE, Space, State, StateMove, bits, space_of

REACHES = (0.5, 1.0, 0.25)  # powers of the distance
SHORT = 32  # items whose exact cost is computed
FIRST = 4  # width after the greedy passes; it grows by this factor
OF_A_STEP = 100  # operations up to which a step gets all states of the effort; a state's time grows with the step
FAR = 1 << 60  # ns: items that cannot be recomputed are freed last
GREEDY = 2  # executions that a greedy pass may take, per operation of the step
RANKED, SOURCE = 8, 12  # visits of a ranked item, and of an operation that recomputes one
GROWS = 2.5  # least ratio of states that wider layers visit; with fewer states left they would not end


DTR = "Kirisame et al. 2021, Dynamic tensor rematerialization"


class _Node(NamedTuple):
    """A state on a walk.

    Attributes:
        state: The state.
        held: Bytes resident.
        time: ns of recomputations so far.
        estimate: Least ns of recomputations in the end.
        above: The previous node, and the recomputation on the way.
    """

    state: State
    held: int
    time: int
    estimate: int
    above: tuple[_Node, FlatRecompute] | None


def beam(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Run greedy passes, then wider and wider layers, and polish what fits. If nothing fits, search under larger
    budgets.

    Source:
        M. Kirisame et al., "Dynamic tensor rematerialization", ICLR 2021, for the rule of evictions; L. Belady, "A
        study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966, for known next
        uses.
    From the paper:
        The order of evictions: cost of recomputation over bytes and distance.
    Differences:
        The distance is that of the next use, because a captured step knows its future. A beam keeps several states,
        because one greedy pass guesses wrong.
    """

    def search(budget: int) -> Proposals[int | None]:
        peaks: list[int] = []
        states = request.effort.states * OF_A_STEP // max(OF_A_STEP, len(instance.graph.operations))
        for recomputes in walks(instance.view(space_of), budget, states, context.deadline):
            judged = yield Proposal(recomputes)
            peaks.append(judged.peak)
            if judged.peak > request.budget:
                break  # only the smallest peak is wanted
            yield from polish(instance.problem, judged, request.budget, context.deadline)
        return min(peaks, default=None)

    yield from downward(instance, request, context, search)


def walks(space: Space, budget: int, states: int, deadline: Deadline) -> Iterator[tuple[FlatRecompute, ...]]:
    """Yield recomputations within `budget` bytes.

    Greedy passes come first, one for each of REACHES, long enough for the step. Then layers get wider and wider, until
    `states` states have been visited or no state was left out.
    """
    search = _Beam(space, budget, deadline)
    width, left, passes = FIRST, states, max(states, GREEDY * len(space.points))
    for reach in REACHES:
        yield from search.run(1, (reach,), passes)
    visited = passes - search.left
    while left >= GROWS * visited and not search.whole and not deadline.stopped():
        yield from search.run(width, REACHES, left)
        visited, left, width = left - search.left, search.left, FIRST * width


class _Beam:
    def __init__(self, space: Space, budget: int, deadline: Deadline) -> None:
        self.space, self.budget, self.deadline = space, budget, deadline
        self.left = 0  # states that the current run may still visit
        self.whole = False  # whether no state was left out in the last run, so that a wider run would be equal
        self.dearer: dict[tuple[int, bool], tuple[int, int, float]] = {}  # see `_dearer`
        self.uses: list[list[int]] = [[] for _ in space.size]
        for p in range(len(space.points)):
            for k in bits(space.reads_first(p)):
                self.uses[k].append(p)

    def run(self, width: int, reaches: tuple[float, ...], states: int) -> Iterator[tuple[FlatRecompute, ...]]:
        self.left, start = states, self.space.start()
        layer = [_Node(start, 0, 0, 0, None)]
        self.whole = width > 1
        for _ in self.space.points:
            layer = self._layer(layer, width, reaches)
            if not layer or self.deadline.stopped():
                return
        yield _walk(layer[0])

    def _layer(self, layer: list[_Node], width: int, reaches: tuple[float, ...]) -> list[_Node]:
        """Return the best states after the operation that all states of a layer are about to run."""
        queue = [(node.estimate, 0, n, node) for n, node in enumerate(layer)]
        seen, best_of_state = {node.state for node in layer}, dict[State, _Node]()
        serial, depth = len(layer), 0
        heapq.heapify(queue)
        while queue and len(best_of_state) < 2 * width:
            if self.left <= 0 or self.deadline.stopped():
                return []
            self.left -= 1
            _, depth, _, node = heapq.heappop(queue)
            for following, op in self._steps(node, width, reaches):
                if op < 0:
                    known = best_of_state.get(following.state)
                    if known is None or following.estimate < known.estimate:
                        best_of_state[following.state] = following
                elif following.state not in seen:
                    seen.add(following.state)
                    serial += 1
                    heapq.heappush(queue, (following.estimate, depth - 1, serial, following))
        best = sorted(best_of_state.values(), key=lambda node: (node.estimate, node.held))
        self.whole &= not queue and len(best) <= width
        return best[:width]

    def _steps(self, node: _Node, width: int, reaches: tuple[float, ...]) -> Iterator[tuple[_Node, int]]:
        """Yield nodes one execution further, with the operation that ran again in it, or -1."""
        space, state = self.space, node.state
        available = state.resident | state.returned
        moves = list(space.first(state.point))
        lacking = moves[0].need & ~available
        pending, again = 0, -1
        if lacking:
            if space.points[state.point] < 0:  # the forward/backward boundary, where no recomputation is possible
                return
            operations, pending = self._sources(state, lacking)
            if not operations:
                return
            ready = [f for f in operations if not space.needs(state.point, f) & ~available]
            chosen = dict.fromkeys((ready[0], ready[-1]) if width > 1 else ready[:1])
            moves = [move for f in chosen for move in space.again(state.point, f)]
        for move in moves:
            if move.victim and (not move.victim & state.resident or move.victim & pending):
                continue
            again = move.op if lacking else -1
            for dropped in self._room(node, move, pending, reaches):
                following = self._after(node, move, dropped, again, width)
                if following is not None:
                    yield following, again

    def _sources(self, state: State, lacking: int) -> tuple[list[int], int]:
        """Return operations to run again so that the missing items are in memory, ascending, and the items that they
        read.

        The result is empty if a generator's state or the copy of a buffer was freed.
        """
        space, available = self.space, state.resident | state.returned
        operations, read, seen = set[int](), 0, 0
        while lacking:
            k = (lacking & -lacking).bit_length() - 1
            f = space.makers[k]
            if f < 0:
                return [], 0
            operations.add(f)
            seen |= space.writes[f]
            need = space.needs(state.point, f)
            read |= need
            lacking = (lacking | need & ~available) & ~seen
        return sorted(operations), read

    def _room(self, node: _Node, move: StateMove, pending: int, reaches: tuple[float, ...]) -> list[int]:
        """Return sets of items to free so that the move fits, one per ranking."""
        state, space = node.state, self.space
        excess = space.during(state, move, node.held) - self.budget
        if excess <= 0:
            return [0]
        mask = space.states.get(move.op, 0) if move.op == space.points[state.point] else 0
        mask |= sum(space.copies.values()) if move.op == UPDATE else 0
        free = state.resident & (space.counted[state.point] | mask) & ~move.need & ~move.written
        if space.bytes_of(free) < excess:
            return []
        ranked = [self._ranked(state, free, pending, reach) for reach in reaches]
        return list(dict.fromkeys(self._enough(order, excess) for order in ranked))

    def _enough(self, order: list[int], excess: int) -> int:
        """Return the first items whose bytes suffice, without those that later items made superfluous."""
        size, taken, freed = self.space.size, list[int](), 0
        for k in order:
            if freed >= excess:
                break
            taken.append(k)
            freed += size[k]
        dropped = 0
        for k in reversed(taken):
            if freed - size[k] >= excess:
                freed -= size[k]
            else:
                dropped |= 1 << k
        return dropped

    def _ranked(self, state: State, free: int, pending: int, reach: float) -> list[int]:
        """Return items in the order in which they are freed. Items that pending recomputations read come last."""
        space, p = self.space, state.point
        rough: list[tuple[bool, float, int]] = []
        for k in bits(free):
            if space.size[k]:
                f = space.makers[k]
                weight = space.size[k] * self._distance(k, p) ** reach
                rough.append((bool(pending >> k & 1), (space.problem.time[f] + 1 if f >= 0 else FAR) / weight, k))
        rough.sort()
        self.deadline.spend(RANKED * len(rough))
        exact = [(late, score * self._dearer(state, k), k) for late, score, k in rough[:SHORT]]
        return [k for _, _, k in (*sorted(exact), *rough[SHORT:])]

    def _distance(self, k: int, p: int) -> int:
        uses = self.uses[k]
        at = bisect_left(uses, p)
        return (uses[at] if at < len(uses) else len(self.space.points)) - p + 1

    def _dearer(self, state: State, k: int) -> float:
        """Return the time to recompute an item over the time of its own operation.

        It is cached until one of the needed items enters or leaves memory.
        """
        space, f = self.space, self.space.makers[k]
        if f < 0:
            return 1.0
        available, key = (state.resident | state.returned) & ~(1 << k), (k, state.point >= space.update)
        requested, was, ratio = self.dearer.get(key, (0, -1, 0.0))
        if available & requested != was:
            produced, requested = self._makers(state.point, 1 << k, available)
            time = sum(space.problem.time[g] for g in produced)
            self.deadline.spend(SOURCE * len(produced))
            ratio = (time + 1) / (space.problem.time[f] + 1)
            self.dearer[key] = requested, available & requested, ratio
        return ratio

    def _makers(self, p: int, items: int, available: int) -> tuple[set[int], int]:
        """Return operations that recompute items, and the items that they need."""
        space, makers, seen, requested = self.space, set[int](), 0, 0
        while items:
            f = space.makers[(items & -items).bit_length() - 1]
            if f < 0:
                break
            makers.add(f)
            seen |= space.writes[f]
            need = space.needs(p, f)
            requested |= need
            items = (items | need & ~available) & ~seen
        return makers, requested

    def _after(self, node: _Node, move: StateMove, dropped: int, again: int, width: int) -> _Node | None:
        space, state = self.space, node.state
        following = space.after(state, move, dropped)
        held = space.held_after(state, node.held, following)
        time = node.time + move.time
        missing = space.missing(following) if width > 1 else (0, 0)
        if missing is None:
            return None
        above = (node, FlatRecompute(again, space.points[state.point])) if again >= 0 else node.above
        return _Node(following, held, time, time + missing[1], above)


def _walk(node: _Node) -> tuple[FlatRecompute, ...]:
    recomputes: list[FlatRecompute] = []
    while node.above is not None:
        node, recompute = node.above
        recomputes.append(recompute)
    return tuple(reversed(recomputes))


BEAM = Strategy(
    "beam", "walk through the step, free values that cost least to compute again, by bytes and distance", beam, DTR
)
