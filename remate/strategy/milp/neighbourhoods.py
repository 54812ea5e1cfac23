"""Large-neighbourhood search: an integer program decides again where some operations recompute; the rest stays.

P. Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998. The program
is that of `formulation` with a stage for every operation of the backward, as Checkmate has them. The reads of settled
recomputations are known in it, so memory is counted to the byte; it stays small since a settled operation has variables
only where it runs again already. (The program of a whole step would have a hundred thousand.)

Free are rows of neighbours in the forward: one around an operation whose recomputations take long, or two, between
which memory is then traded. Rows grow where programs are solved to the end and shrink where they are not.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import accumulate

from remate_runtime.flat_step import FlatRecompute

from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..instance import StepInstance
from ..local.greedy import greedy
from ..local.polish import polish, pruned
from ..pool import better
from ..problem import Problem
from .formulation import Formulation
from .highs import SOLVER
from .place import place
from .warm_start import warm_start
from .windows import RecomputeWindows, recompute_windows

SEED = 20260101
NODES = 2  # times those of the effort, in one program
WORK = 3 / 10  # of that of the effort: programs are many, and most are solved at once
USUAL = 500  # forward operations of a step that gets all the neighbourhoods of the effort
FIRST, FEWEST, MOST = 150, 40, 300  # recomputes that a program may choose among
GROW, SHRINK = 1.15, 0.7  # their number, where programs are solved, or are not
ANYWHERE, TWO = 0.25, 0.5  # share of the rows that lie anywhere, and of the neighbourhoods of two rows
PATIENCE = 3  # part of the neighbourhoods in a row that bring nothing before it ends
NARROW = 4  # operations of the shortest row
WORTH = 1e-4  # % of the time of the step that an improvement takes off


def neighbourhoods(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Improve on the best known schedule, or on a greedy one, neighbourhood by neighbourhood. A schedule that
    recomputes in the forward is left alone: the program has no variables for that."""
    if context.best is None:
        yield from greedy(instance, request, context)
    best = context.best
    if best is None:
        return
    if best.order is not None:
        instance = instance.ordered(best.order)
    problem, rng, most = instance.problem, random.Random(SEED), float(FIRST)
    stage = stages(problem)
    count, vain = _count(instance, request), 0
    for _ in range(count):
        if (
            vain > count // PATIENCE
            or context.deadline.stopped()
            or best.time <= context.enough
            or not expressible(problem, best)
        ):
            return
        free = _free(problem, stage, best, rng, int(most))
        recomputes, solved = _solved(instance, request, context, stage, best, free)
        most = min(MOST, GROW * most) if solved else max(FEWEST, SHRINK * most)
        vain += 1
        if recomputes is None:
            continue
        candidate = yield Proposal(recomputes, best)
        if candidate.peak <= request.budget:
            vain = 0 if candidate.time < best.time else vain
            best = better(best, candidate) or best
            best = yield from polish(problem, best, request.budget, context.deadline, start=best)


def expressible(problem: Problem, given: Candidate) -> bool:
    """Whether the program can express a schedule: it recomputes something, and nothing before the forward/backward
    boundary."""
    return bool(given.recomputes) and all(recompute.before >= problem.backward_start for recompute in given.recomputes)


def stages(problem: Problem) -> tuple[int, ...]:
    """A stage for every executed operation of the backward, by index minus turn."""
    executed = accumulate(int(real) for real in problem.real[problem.backward_start :])
    return tuple(max(0, n - 1) for n in executed)


def windows_around(
    problem: Problem, stage: tuple[int, ...], given: Candidate, free: Collection[int]
) -> RecomputeWindows:
    """Windows in which operations outside `free` run again where they do in a schedule, and those of `free` wherever an
    operation that runs there reads their results."""
    allowed, sure = _allowed(problem, stage, given, free)
    return recompute_windows(problem, stage, allowed, frozenset(sure))


def _allowed(
    problem: Problem, stage: tuple[int, ...], given: Candidate, free: Collection[int]
) -> tuple[dict[int, set[int]], set[tuple[int, int]]]:
    backward_start, free = problem.backward_start, frozenset(free)
    allowed: dict[int, set[int]] = {}
    for recompute in given.recomputes:
        allowed.setdefault(recompute.op, set()).add(stage[recompute.before - backward_start])
    sure = {(f, k) for f, ks in allowed.items() if f not in free for k in ks}
    for f in sorted(free, reverse=True):
        if f in problem.once:
            continue
        stages_of = allowed.setdefault(f, set())
        for s in problem.writes[f]:
            for i in problem.readers[s] if s not in problem.pinned else ():
                stages_of |= {stage[i - backward_start]} if i >= backward_start else allowed.get(i, set())
    return allowed, sure


def _free(problem: Problem, stage: tuple[int, ...], given: Candidate, rng: random.Random, most: int) -> frozenset[int]:
    """Operations to decide on again, so many that a program has about `most` recomputations to choose among."""
    weight = [0] * len(problem.real)
    for recompute in given.recomputes:
        weight[recompute.op] += problem.time[recompute.op] + 1
    costly = [f for f in problem.forward if weight[f]]
    at = {f: n for n, f in enumerate(problem.forward)}
    centres = []
    for _ in range(2 if rng.random() < TWO else 1):
        anywhere = rng.random() < ANYWHERE
        chosen = rng.choice(problem.forward) if anywhere else rng.choices(costly, [weight[f] for f in costly])[0]
        centres.append((at[chosen], rng.random()))
    width, chosen_operations = NARROW, frozenset[int]()
    while True:
        rows = [range(max(0, c - int(share * width)), c - int(share * width) + width) for c, share in centres]
        wider = frozenset(problem.forward[n] for row in rows for n in row if n < len(problem.forward))
        allowed, sure = _allowed(problem, stage, given, wider)
        if chosen_operations and sum(map(len, allowed.values())) - len(sure) > most:
            return chosen_operations
        chosen_operations = wider
        if width > 2 * len(problem.forward):
            return chosen_operations
        width += max(1, width // 4)


def _solved(
    instance: StepInstance,
    request: Request,
    context: Context,
    stage: tuple[int, ...],
    best: Candidate,
    free: Collection[int],
) -> tuple[tuple[FlatRecompute, ...] | None, bool]:
    """Recomputations that a program finds better than those of `best`, if any; and whether it was solved to the end."""
    problem, effort = instance.problem, request.effort
    windows = windows_around(problem, stage, best, free)
    model = Formulation(problem, windows, instance.baseline.peak)
    assert windows.sure is not None
    result = model.around(
        context.deadline,
        request.budget,
        windows.sure,
        warm_start(problem, windows, best.recomputes),
        nodes=NODES * effort.nodes,
        work=WORK * effort.work,
    )
    known = 100.0 * (best.time / max(1, problem.baseline_time) - 1.0)
    solved = result.status in ("optimal", "gap", "infeasible")
    if result.x is None or result.objective > known - WORTH:
        return None, solved
    return tuple(pruned(problem, place(problem, windows, model.chosen(result)))), solved


def _count(instance: StepInstance, request: Request) -> int:
    """Building a program costs as much as the step is long."""
    size = max(1, len(instance.problem.forward))
    return max(1, int(request.effort.neighbourhoods * min(1.0, USUAL / size)))


NEIGHBOURHOODS = Strategy(
    "neighbourhoods",
    "integer programs for some operations of the best schedule, all other recomputations where they are",
    neighbourhoods,
    reference="P. Shaw, Using constraint programming and local search methods to solve vehicle routing problems, "
    "CP 1998",
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
