"""The fastest recomputations of a small step, proven, or a bound if a limit of states ends the search.

A* (P. E. Hart, N. J. Nilsson, B. Raphael, A formal basis for the heuristic determination of minimum cost paths, 1968)
over the states of `space`. The estimate of a state is the time of all operations that must still run again, each once.
It never falls by more than the cost of a move, so the first walk that arrives is the fastest, and the least estimate in
the queue is a bound on every walk. Two rules lose nothing: more items are never worse than fewer at the same time, so
an item is freed only if something else would not fit; and items that cannot be needed any more are freed at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from remate_runtime.flat_step import FlatRecompute

from ..base import Bound, Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..instance import FORBIDDEN, StepInstance
from .downward import downward
from .space import Space, State, StateMove, bits, space_of

REFERENCE = "Hart, Nilsson, Raphael 1968, A formal basis for the heuristic determination of minimum cost paths"
STATE = 400  # visits of a state
_Step = tuple[State, int]  # the state before a move, and the operation that ran again in it, or -1


def exact(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Search for the fastest schedule.

    If nothing fits, or the search is too long, search under larger budgets. All these searches together visit as many
    states as the first search may. A complete search that fails raises the floor of the context.

    Source:
        P. E. Hart, N. J. Nilsson, B. Raphael, "A formal basis for the heuristic determination of minimum cost paths",
        IEEE Transactions on Systems Science and Cybernetics 4, 1968.
    From the paper:
        A* with a consistent estimate, so the first walk that arrives is optimal.
    Differences:
        Items are freed only if something else would not fit, and items without a later use are freed at once, because
        neither rule loses an optimum.
    """
    left, provable = 2 * request.effort.states, instance.provable is instance

    def search(budget: int) -> Proposals[int | None]:
        nonlocal left
        if left <= 0:
            return None
        result = _once(instance, budget, min(left, request.effort.states), context.deadline)
        left -= result.states
        if result.recomputes is None and result.complete and provable:
            context.floor = max(context.floor, result.least)
        return None if result.recomputes is None else (yield Proposal(result.recomputes)).peak

    yield from downward(instance, request, context, search)


def estimate(instance: StepInstance, request: Request, context: Context) -> int:
    """Return the least time of every walk when the search ends; the optimum if the search is complete."""
    result = _once(instance, request.budget, request.effort.states, context.deadline)
    return instance.baseline.time + (result.bound if result.recomputes is not None or not result.complete else 0)


class ExactResult(msgspec.Struct, frozen=True):
    """The result of a search.

    Attributes:
        recomputes: The fastest within the budget, or None.
        bound: ns that any schedule within the budget takes beyond running each operation once.
        complete: Whether the search reached no limit. If it is complete and `recomputes` is None, no schedule fits.
        states: Number of visited states.
        least: If the search is complete and nothing fits, bytes that the peak of every schedule reaches at least.
    """

    recomputes: tuple[FlatRecompute, ...] | None
    bound: int
    complete: bool
    states: int
    least: int = 0


def _once(instance: StepInstance, budget: int, states: int, deadline: Deadline) -> ExactResult:
    """Return the result of `fastest`, cached unless the deadline ended the search."""
    at = (fastest, budget, states)
    if at in instance.kept:
        return instance.kept[at]
    result = fastest(instance, budget, states, deadline)
    if not deadline.stopped():
        instance.kept[at] = result
    return result


def fastest(instance: StepInstance, budget: int, states: int, deadline: Deadline) -> ExactResult:
    """Search for the fastest recomputations whose peak is at most `budget` bytes, in at most `states` states."""
    return _StateSearch(instance.view(space_of), budget).run(states, deadline)


class _StateSearch:
    def __init__(self, space: Space, budget: int) -> None:
        self.space, self.budget = space, budget
        self.least_over = FORBIDDEN  # least bytes of an execution that did not fit
        self.before: dict[State, _Step] = {}
        self.least: dict[State, int] = {}
        self.queue: list[tuple[int, int, State, int, int]] = []  # estimate, -point, state, its bytes, time so far
        self._push(space.start(), 0, 0, None)

    def run(self, states: int, deadline: Deadline) -> ExactResult:
        done: set[State] = set()
        while self.queue:
            estimate, _, state, held, time = self.queue[0]
            if len(done) >= states or deadline.stopped():
                return ExactResult(None, estimate, False, len(done))
            heapq.heappop(self.queue)
            if state in done:
                continue
            done.add(state)
            deadline.spend(STATE)
            if state.point == len(self.space.points):
                return ExactResult(self._walk(state), time, True, len(done))
            self._expand(state, held, time)
        return ExactResult(None, 0, True, len(done), self.least_over)

    def _push(self, state: State, held: int, time: int, step: _Step | None) -> None:
        known = self.least.get(state)
        if known is not None and known <= time:
            return
        missing = self.space.missing(state)
        if missing is None:
            return
        self.least[state] = time
        if step is not None:
            self.before[state] = step
        heapq.heappush(self.queue, (time + missing[1], -state.point, state, held, time))

    def _expand(self, state: State, held: int, time: int) -> None:
        space, tight = self.space, False
        available = state.resident | state.returned
        for move in self._moves(state):
            if move.need & ~available or (move.victim and not move.victim & state.resident):
                continue
            during = space.during(state, move, held)
            if during > self.budget:
                tight, self.least_over = True, min(self.least_over, during)
                continue
            following = space.after(state, move)
            again = move.op if following.point == state.point else -1
            self._push(following, space.held_after(state, held, following), time + move.time, (state, again))
        if tight:
            for k in bits(state.resident & space.counted[state.point + 1]):
                less = state._replace(resident=state.resident & ~(1 << k))
                self._push(less, space.held_after(state, held, less), time, (state, -1))

    def _moves(self, state: State) -> Iterator[StateMove]:
        space, p = self.space, state.point
        yield from space.first(p)
        if space.points[p] < 0:
            return
        lacking = space.useful[p] & space.born[p] & ~(state.resident | state.returned)
        for f in sorted({space.makers[k] for k in bits(lacking)} - {-1}):
            yield from space.again(p, f)

    def _walk(self, state: State) -> tuple[FlatRecompute, ...]:
        recomputes: list[FlatRecompute] = []
        while state in self.before:
            state, op = self.before[state]
            if op >= 0:
                recomputes.append(FlatRecompute(op, self.space.points[state.point]))
        return tuple(reversed(recomputes))


EXACT = Strategy("exact", "the fastest schedule of a small step, by A* over its states", exact, REFERENCE)
STATES = Bound("states", "the least estimate of A* over the states of a step when it ends", estimate, REFERENCE)
