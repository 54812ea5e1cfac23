"""Ruin and recreate: forget some reruns of a good schedule, make it fit again greedily, keep what is better.

Deterministic for a given number of rounds: chance is seeded. It closes what formulations with static windows leave open
on nets of a few hundred operations, where one rerun more or less is a visible share of the step.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ..milp.budget_search import Candidate, better, judge
from ..milp.highs import SEED, Control
from ..problem import Problem
from .polish import polish
from .squeeze import MoveRanking, squeeze

REACHES = (0.0, 0.5, 1.0)


def from_nothing(problem: Problem, budget: int, control: Control) -> list[Candidate]:
    """Greedy schedules, one per way of ranking; those that fit are polished, the others tell how small a peak can
    be."""
    made: list[Candidate] = []
    for reach in REACHES:
        reruns = squeeze(problem, (), budget, control, ranking=MoveRanking(reach), rounds=_rounds(problem))
        found = judge(problem, reruns, "greedy")
        made.append(polish(problem, found, budget, control) if found.peak <= budget else found)
        if control.stopped():
            break
    return made


def recreate(
    problem: Problem, given: Candidate, budget: int, control: Control, rounds: int, done: Callable[[Candidate], bool]
) -> Candidate:
    """The best of `rounds` attempts to improve on `given`, which fits the budget."""
    chance = random.Random(SEED)
    best = given
    for _ in range(rounds):
        if control.stopped() or done(best):
            break
        left = _ruined(problem, best, chance)
        ranking = MoveRanking(chance.choice(REACHES), chance.choice((0.1, 0.3, 0.8)), chance)
        reruns = squeeze(problem, left, budget, control, ranking=ranking, rounds=_rounds(problem))
        found = judge(problem, reruns, best.strategy)
        if found.peak <= budget:
            best = better(best, polish(problem, found, budget, control)) or best
    return best


def _ruined(problem: Problem, given: Candidate, chance: random.Random) -> tuple:
    """Without the reruns of a stretch of the forward, or of a stretch of the step, or without any one in a few."""
    kind = chance.random()
    if kind < 0.4:
        low, high = _stretch(0, problem.backward_start, chance)
        return tuple(r for r in given.reruns if not low <= r.op < high)
    if kind < 0.8:
        low, high = _stretch(problem.backward_start, len(problem.real), chance)
        return tuple(r for r in given.reruns if not low <= r.before < high)
    share = chance.choice((0.1, 0.3, 0.5))
    return tuple(r for r in given.reruns if chance.random() >= share)


def _stretch(begin: int, end: int, chance: random.Random) -> tuple[int, int]:
    width = max(1, int((end - begin) * chance.choice((0.05, 0.15, 0.3, 0.6))))
    low = chance.randrange(begin - width // 2, max(begin, end - width // 2))
    return low, low + width


def _rounds(problem: Problem) -> int:
    return 4 * len(problem.forward) + 100
