"""Simulated annealing over sequences of executions (`annealing`), in any order or in the given one.

`fastsa` changes the order of first executions, `anneal` keeps it: the problem of Checkmate and of Moccasin.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..instance import StepInstance
from ..pool import better
from .annealing import VISITS, Annealing, Result
from .polish import polish
from .recreate import improved
from .sequence import Sequence
from .squeeze import MoveRanking, squeeze

SEED = 20260101
SMALL = 100  # operations from which a step gets all changes of the effort
ORDERING, STARTS = 0.5, 6  # share of the changes without recomputation, and number of starts that share them
RECOMPUTES = 3  # starts in which only recomputations change
PAPER = "A. Imanishi et al., A fast heuristic to optimize time-space tradeoff for large models (FastSA), NeurIPS 2023"


def fastsa(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Anneal, then improve the result. If it does not fit, squeeze it.

    Source:
        A. Imanishi, Z. Xu, M. Takagi, S. Wang, E. Castillo, "A fast heuristic to optimize time-space tradeoff for large
        models" (FastSA), NeurIPS 2023.
    From the paper:
        Simulated annealing over sequences of executions in any order. An execution is added, removed or moved; bytes
        change only in the slots that a change affects; a sequence costs its time and its bytes over the budget.
    Differences:
        The excess is summed over slots instead of its maximum, because the sum shows progress before the peak falls; so
        an array of slots replaces the segment tree. The weight of the excess adapts during the search. The first half
        of the changes only reorders, because an order costs no time. Some recomputations are added where the sequence
        is fullest. Ruin and recreate improves the result, because it knows in-place execution.
    """
    order, recomputes = annealed(instance, request.budget, _changes(instance, request), context.deadline)
    ordered = instance.ordered(order)
    first = yield Proposal(recomputes, order=order)
    best = first if first.peak <= request.budget else None
    for start in ((), recomputes) if best is None else ():
        tried = squeeze(ordered.problem, start, request.budget, request.effort, context.deadline, ranking=MoveRanking())
        candidate = yield Proposal(tried, order=order)
        best = better(best, candidate) if candidate.peak <= request.budget else best
    if best is not None:
        best = yield from polish(ordered.problem, best, request.budget, context.deadline, start=best)
        yield from improved(ordered, request, context, best)


def anneal(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Anneal from several starts. Squeeze results that do not fit, and polish those that do.

    Source:
        A. Imanishi, Z. Xu, M. Takagi, S. Wang, E. Castillo, "A fast heuristic to optimize time-space tradeoff for large
        models" (FastSA), NeurIPS 2023.
    From the paper:
        As `fastsa`.
    Differences:
        As `fastsa`, but first executions keep the given order, because that is the problem of Checkmate and Moccasin.
    """
    problem, rng = instance.problem, random.Random(SEED)
    for _ in range(RECOMPUTES):
        if context.deadline.stopped():
            return
        tried = Annealing(problem, request.budget, rng, Sequence(problem), reorders=False)
        tried.run(_changes(instance, request) // RECOMPUTES, context.deadline, recomputes=True)
        candidate = yield Proposal(tried.result[1])
        if candidate.peak > request.budget:
            start = tried.result[1]
            candidate = yield Proposal(squeeze(problem, start, request.budget, request.effort, context.deadline))
        if candidate.peak <= request.budget:
            yield from polish(problem, candidate, request.budget, context.deadline)


def _changes(instance: StepInstance, request: Request) -> int:
    share = min(1.0, len(instance.graph.operations) / SMALL)
    return int(request.effort.visits / VISITS * share)


def annealed(instance: StepInstance, budget: int, changes: int, deadline: Deadline) -> Result:
    """Return the best sequence that annealing reaches."""
    problem, rng = instance.problem, random.Random(SEED)
    each = int(ORDERING * changes / STARTS)
    best: Annealing | None = None
    for _ in range(STARTS):
        tried = Annealing(problem, budget, rng, Sequence(problem), reorders=True)
        tried.run(each, deadline, recomputes=False)
        best = tried if best is None or tried.best < best.best else best
        if best.best[0] == 0 or deadline.stopped():
            return best.result
    assert best is not None
    last = Annealing(problem, budget, rng, Sequence(problem, best.result[0]), reorders=True)
    last.run(changes - STARTS * each, deadline, recomputes=True)
    return min(best, last, key=lambda annealing: annealing.best).result


FASTSA = Strategy(
    "fastsa",
    "simulated annealing over sequences of executions, in any order",
    fastsa,
    reference=PAPER,
    needs=frozenset({"order"}),
    reorders=True,
)
ANNEAL = replace(
    FASTSA,
    name="anneal",
    summary="simulated annealing over recomputations, in the given order",
    propose=anneal,
    needs=frozenset({"forward"}),
    reorders=False,
)
