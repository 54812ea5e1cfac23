"""Make a schedule smaller, one recomputation at a time: at its worst moment, free what is cheapest to compute again
later.

Greedy: not fast schedules, but feasible ones where a formulation has none. A recomputation may take place anywhere
here, even in the forward, and an operation may run again as often as memory requires.
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

LOCALITIES = (0.0, 0.5, 1.0)  # of rankings that are worth trying
DEEP = 200  # operations that may run again for the sake of one storage, if fewer do not help


class MoveRanking:
    """How moves are ranked: by time over bytes at the worst step (locality 0), over bytes and steps above the budget
    that they relieve (locality 1), or between. spread: weight of a random generator in it (0: none)."""

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
    """Recomputations whose peak (by the ledger) is at most `budget` bytes, or the smallest peak on the way there."""
    current = list(recomputes)
    ledger = Ledger(problem, current)
    best, refused = tuple(recomputes), set[tuple[int, int]]()
    visits, deepest = effort.visits, DEEP
    for _ in range(4 * len(problem.forward) + 100):
        worst = int(ledger.live.argmax())
        if ledger.peak <= budget or visits <= 0 or deadline.stopped():
            break
        moves = sorted(_moves(problem, ledger, worst, budget, ranking, deepest), key=lambda m: (m.score, m.storage))
        moves = [m for m in moves if (m.storage, m.step) not in refused]
        accepted = False
        for move in moves[:12]:
            trial = _insert(problem, ledger, current, move)
            after = Ledger(problem, trial)
            visits -= len(after.order)
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
    """The peak, and at how many steps it is reached."""
    return ledger.peak, int((ledger.live == ledger.peak).sum())


def _moves(
    problem: Problem, ledger: Ledger, worst: int, budget: int, ranking: MoveRanking, deepest: int
) -> list[_Move]:
    """Storages live at the worst step that can be freed there, each with the operations that would have to run again
    before its next read, at most `deepest`."""
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
    """Whether a storage need not outlive the worst step, if it is computed again later: nothing outside holds it there,
    and the operation that runs there does not read it, or may overwrite it."""
    if ledger.held[life] and not (worst < ledger.backward_start and ledger.backward_start in reads):
        return False
    if worst not in reads:
        return True
    return worst != ledger.backward_start and int(ledger.storage[life]) in problem.may_overwrite[ledger.order[worst]]


def _point(problem: Problem, ledger: Ledger, step: int) -> int:
    """The operation before which recomputations for a first run, or for the forward/backward boundary, take place. None
    can take place between the last operation of the forward and the boundary."""
    return ledger.order[step] if step != ledger.backward_start else problem.backward_start - 1


def _in_time(problem: Problem, ledger: Ledger, operations: tuple[int, ...], step: int) -> bool:
    """Whether all of them have run once where they would run again."""
    return ledger.again[step] >= 0 or operations[-1] < _point(problem, ledger, step)


def _needed(
    problem: Problem, ledger: Ledger, storage: int, worst: int, step: int, deepest: int
) -> tuple[int, ...] | None:
    """Operations to run again, in order, to have `storage` at `step` without further memory at `worst`; None if more
    than `deepest`."""
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
    """Whether a storage is live at `step`, or was last so after `worst`: then it can simply stay."""
    last = ledger.latest(storage, step)
    return last is not None and (last[1] >= step or last[0] > worst or last[1] > worst)


def _insert(problem: Problem, ledger: Ledger, recomputes: list[FlatRecompute], move: _Move) -> list[FlatRecompute]:
    """The recomputations with those of the move just before its step."""
    again = ledger.again[move.step]
    if again >= 0:  # the reader is itself a recomputation: stand before it in the list
        at, before = again, recomputes[again].before
    else:
        before = _point(problem, ledger, move.step)
        at = max((n for n, r in enumerate(recomputes) if r.before == before), default=len(recomputes) - 1) + 1
    return [*recomputes[:at], *(FlatRecompute(f, before) for f in move.operations), *recomputes[at:]]
