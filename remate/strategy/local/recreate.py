"""Ruin and recreate: remove some recomputations of a good schedule, make it fit again greedily, and keep improvements.

The generator is seeded, so a given number of rounds gives one result. This finds improvements that formulations with
static windows miss in nets of a few hundred operations, where one recomputation is a visible share of the step.
"""

from __future__ import annotations

import random

from remate_runtime.flat_step import FlatRecompute

from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..pool import better
from ..problem import Problem
from .greedy import greedy
from .ledger import Ledger
from .polish import as_late_as_possible, longest, trimmed
from .squeeze import LOCALITIES, MoveRanking, squeeze

SEED = 20260101
USUAL = 300  # forward operations of a step that gets all the rounds of the effort
FEWEST = 2


def recreate(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Improve the best known schedule, or a greedy one if there is none.

    Source:
        G. Schrimpf, J. Schneider, H. Stamm-Wilbrandt, G. Dueck, "Record breaking optimization results using the ruin
        and recreate principle", Journal of Computational Physics 159, 2000.
    From the paper:
        A part of a solution is removed, a greedy method completes it again, and improvements are kept.
    Differences:
        Only improvements are accepted, without the paper's threshold, because the number of rounds is small. Removed
        parts are stretches of the forward or backward, or random recomputations.
    """
    if context.best is None:
        yield from greedy(instance, request, context)
    if context.best is not None:
        order = context.best.order
        yield from improved(instance if order is None else instance.ordered(order), request, context, context.best)


def improved(instance: StepInstance, request: Request, context: Context, best: Candidate) -> Proposals[None]:
    """Propose improvements of a schedule.

    Args:
        instance: The step in the schedule's order of first executions.
        request: The budget and the effort.
        context: The deadline.
        best: The schedule.
    """
    problem = instance.problem
    rng = random.Random(SEED)
    for _ in range(_rounds(instance, request)):
        if context.deadline.stopped():
            return
        left = _ruined(problem, best, rng)
        ranking = MoveRanking(rng.choice(LOCALITIES), rng.choice((0.1, 0.3, 0.8)), rng)
        recomputes = squeeze(problem, left, request.budget, request.effort, context.deadline, ranking=ranking)
        late = tuple(as_late_as_possible(problem, recomputes))
        if late != recomputes and Ledger(problem, late).peak <= request.budget:
            recomputes = late
        candidate = yield Proposal(trimmed(problem, recomputes, request.budget, context.deadline, longest), best)
        if candidate.peak <= request.budget:
            best = better(best, candidate) or best


def _rounds(instance: StepInstance, request: Request) -> int:
    """Return the number of rounds. A round costs between the number of operations and its square."""
    size = max(1, len(instance.problem.forward))
    return max(FEWEST, int(request.effort.recreations * min(1.0, (USUAL / size) ** 1.5)))


def _ruined(problem: Problem, given: Candidate, rng: random.Random) -> tuple[FlatRecompute, ...]:
    """Remove the recomputations of a stretch of the forward or backward, or a random few."""
    kind = rng.random()
    if kind < 0.4:
        low, high = _stretch(0, problem.backward_start, rng)
        return tuple(r for r in given.recomputes if not low <= r.op < high)
    if kind < 0.8 and problem.backward_start < len(problem.real):
        low, high = _stretch(problem.backward_start, len(problem.real), rng)
        return tuple(r for r in given.recomputes if not low <= r.before < high)
    share = rng.choice((0.1, 0.3, 0.5))
    return tuple(r for r in given.recomputes if rng.random() >= share)


def _stretch(begin: int, end: int, rng: random.Random) -> tuple[int, int]:
    width = max(1, int((end - begin) * rng.choice((0.05, 0.15, 0.3, 0.6))))
    low = rng.randrange(begin - width // 2, max(begin, end - width // 2))
    return low, low + width


RECREATE = Strategy(
    "recreate",
    "remove some recomputations of the best schedule, make it fit again, keep improvements",
    recreate,
    reference="G. Schrimpf et al., Record breaking optimization results using the ruin and recreate principle, 2000",
)
