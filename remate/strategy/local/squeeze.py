"""Greedy reduction of a schedule's peak: at the worst moment, free the storage that is cheapest to compute again.

The results are not fast, but feasible where a formulation has no solution. A recomputation may take place anywhere,
even in the forward, and an operation may run again as often as memory requires.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right

import msgspec
import numpy as np

from remate_runtime.flat_step import FlatRecompute

from ..deadline import Deadline
from ..effort import Effort
from ..problem import Problem
from .ledger import Ledger
from .polish import as_late_as_possible, pruned

LOCALITIES = (0.0, 0.5, 1.0)  # localities of useful rankings
TRIAL, SOURCE = 2000, 8  # visits of a trial beside its executions, and of an operation that a move would run again
DEEP = 200  # most operations that run again for one storage, unless no smaller move helps


class MoveRanking:
    """How moves are ranked: time over bytes.

    Args:
        locality: Which bytes count: 0 for bytes at the worst step, 1 for bytes and steps above the budget that the move
            relieves, or between.
        spread: Standard deviation of random noise; 0 for none.
        rng: Source of the noise.
    """

    def __init__(self, locality: float = 0.0, spread: float = 0.0, rng: random.Random | None = None) -> None:
        self.locality, self.spread, self.rng = locality, spread, rng

    def noise(self) -> float:
        return 1.0 if self.rng is None else math.exp(self.rng.gauss(0.0, self.spread))


PLAIN = MoveRanking()


class _Move(msgspec.Struct, frozen=True):
    """Recomputations to insert so that a storage can be freed. score: ns per byte."""

    score: float
    storage: int
    step: int
    operations: tuple[int, ...]


def squeeze(
    problem: Problem,
    recomputes: tuple[FlatRecompute, ...],
    budget: int,
    effort: Effort,
    deadline: Deadline,
    *,
    ranking: MoveRanking = PLAIN,
) -> tuple[FlatRecompute, ...]:
    """Return recomputations whose peak is at most `budget` bytes, or the smallest peak that was reached.

    Args:
        problem: The step.
        recomputes: The schedule to reduce.
        budget: Bytes.
        effort: How hard to search.
        deadline: Ends the search early.
        ranking: How moves are ranked.
    """
    current = list(recomputes)
    ledger = Ledger(problem, current)
    best, refused = tuple(recomputes), set[tuple[int, int]]()
    visits, deepest = effort.visits, DEEP
    for _ in range(4 * len(problem.forward) + 100):
        worst = int(ledger.live.argmax())
        if ledger.peak <= budget or visits <= 0 or deadline.stopped():
            break
        moves = sorted(_moves(problem, ledger, worst, budget, ranking, deepest), key=lambda m: (m.score, m.storage))
        deadline.spend(SOURCE * sum(len(m.operations) for m in moves))
        moves = [m for m in moves if (m.storage, m.step) not in refused]
        accepted = False
        for move in moves[:12]:
            trial = _insert(problem, ledger, current, move)
            after = Ledger(problem, trial)
            visits -= len(after.order)
            deadline.spend(TRIAL + len(after.order))
            if _worst(after) < _worst(ledger):
                current, ledger, accepted = trial, after, True
                break
            refused.add((move.storage, move.step))
        if accepted:
            refused.clear()
            best, deepest = tuple(current), DEEP
        elif deepest < len(problem.forward):
            deepest = len(problem.forward)
        else:
            break
    fewer = as_late_as_possible(problem, pruned(problem, best))
    return tuple(fewer) if Ledger(problem, fewer).peak <= Ledger(problem, best).peak else best


def _worst(ledger: Ledger) -> tuple[int, int]:
    """Return the peak, and the number of steps that reach it."""
    return ledger.peak, int((ledger.live == ledger.peak).sum())


def _moves(
    problem: Problem, ledger: Ledger, worst: int, budget: int, ranking: MoveRanking, deepest: int
) -> list[_Move]:
    """Return storages that can be freed at the worst step, each with at most `deepest` operations to run again
    before its next read."""
    moves: list[_Move] = []
    excess = np.maximum(ledger.live - budget, 0)
    goes = (ledger.birth < worst) & (worst <= ledger.death) & problem.arrays.goes[ledger.storage]
    for life in np.flatnonzero(goes).tolist():
        storage, reads = int(ledger.storage[life]), ledger.reads_of(life)
        after = bisect_right(reads, worst)
        if after == len(reads) or not _can_go(problem, ledger, life, reads, worst):
            continue
        step = reads[after]
        operations = _needed(problem, ledger, storage, worst, step, deepest)
        if operations is not None and _in_time(problem, ledger, operations, step):
            time = sum(problem.time[f] for f in operations)
            before = reads[after - 1] if after else int(ledger.birth[life])
            idle = slice(worst if before == worst else before + 1, step)
            size = problem.size[storage]
            relief = float(np.minimum(excess[idle], size).sum()) if ranking.locality else size
            gain = size * (max(relief, 1.0) / size) ** ranking.locality
            moves.append(_Move((time + 1) / gain * ranking.noise(), storage, step, operations))
    return moves


def _can_go(problem: Problem, ledger: Ledger, life: int, reads: list[int], worst: int) -> bool:
    """Return whether a storage can be freed before the end of the worst step, if it is computed again later.

    It must not be held from outside there, and the operation of that step must not read it, unless it may overwrite it.
    """
    if ledger.held[life] and not (worst < ledger.backward_start and ledger.backward_start in reads):
        return False
    if worst not in reads:
        return True
    return worst != ledger.backward_start and int(ledger.storage[life]) in problem.may_overwrite[ledger.order[worst]]


def _point(problem: Problem, ledger: Ledger, step: int) -> int:
    """Return the operation before which recomputations for a first run, or for the forward/backward boundary, take
    place.

    No recomputation is possible between the last operation of the forward and the boundary.
    """
    return ledger.order[step] if step != ledger.backward_start else problem.backward_start - 1


def _in_time(problem: Problem, ledger: Ledger, operations: tuple[int, ...], step: int) -> bool:
    """Return whether all of these operations have run once before they would run again."""
    return ledger.again[step] >= 0 or operations[-1] < _point(problem, ledger, step)


def _needed(
    problem: Problem, ledger: Ledger, storage: int, worst: int, step: int, deepest: int
) -> tuple[int, ...] | None:
    """Return operations to run again, ascending, to have `storage` at `step` without more memory at `worst`.

    The result is None if there are more than `deepest`.
    """
    wanted, needed = [problem.producer[storage]], set[int]()
    while wanted:
        f = wanted.pop()
        if f in needed:
            continue
        needed.add(f)
        if len(needed) > deepest or f in problem.once:
            return None
        for u in problem.reads[f]:
            if u == storage or not _there(ledger, u, worst, step):
                wanted.append(problem.producer[u])
    return tuple(sorted(needed))


def _there(ledger: Ledger, storage: int, worst: int, step: int) -> bool:
    """Return whether a storage is live at `step`, or was last live after `worst`, so that it can stay."""
    last = ledger.latest(storage, step)
    return last is not None and (last[1] >= step or last[0] > worst or last[1] > worst)


def _insert(problem: Problem, ledger: Ledger, recomputes: list[FlatRecompute], move: _Move) -> list[FlatRecompute]:
    """Insert the recomputations of a move just before its step."""
    again = ledger.again[move.step]
    if again >= 0:  # the reader is itself a recomputation: insert before it
        at, before = again, recomputes[again].before
    else:
        before = _point(problem, ledger, move.step)
        at = max((n for n, r in enumerate(recomputes) if r.before == before), default=len(recomputes) - 1) + 1
    return [*recomputes[:at], *(FlatRecompute(f, before) for f in move.operations), *recomputes[at:]]
