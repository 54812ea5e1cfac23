"""Large-neighbourhood search: an integer program decides again where some operations recompute; the rest is unchanged.

P. Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998. The program
is that of `formulation` with a stage for every operation of the backward, as in Checkmate. It knows the reads of
settled recomputations, so it counts memory to the byte. It is small, because a settled operation has variables only
where it already runs again. (The program of a whole step would have a hundred thousand variables.)

Free operations are runs of neighbours in the forward: one run around an operation whose recomputations take long, or
two, between which memory is then traded. Runs grow where programs are solved to the end, and shrink where they are not.
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
NODES = 2  # nodes of one program, as a multiple of the effort's
WORK = 3 / 10  # work of one program, as a share of the effort's: there are many programs, and most are easy
USUAL = 500  # forward operations of a step that gets all the neighbourhoods of the effort
FIRST, FEWEST, MOST = 150, 40, 300  # recomputations that a program may choose among: at first, least, most
GROW, SHRINK = 1.15, 0.7  # factors of that number after a program that was solved, or was not
ANYWHERE, TWO = 0.25, 0.5  # share of runs at random places, and share of neighbourhoods of two runs
PATIENCE = 5  # the search ends after this fraction of the neighbourhoods in a row without improvement
NARROW = 4  # operations of the shortest run
WORTH = 1e-4  # least improvement, in % of the step's time


def neighbourhoods(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Improve the best known schedule, or a greedy one, neighbourhood by neighbourhood.

    A schedule that recomputes in the forward is skipped, because the program has no variables for that.

    Source:
        P. Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998.
    From the paper:
        Large-neighbourhood search: a part of a solution is free, the rest is fixed, and the part is solved again.
        Neighbourhoods grow and shrink.
    Differences:
        An integer program solves the part, not constraint programming, because its relaxation is strong here. Parts are
        runs of neighbouring operations, because memory is traded between neighbours.
    """
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
    """Return whether the program can express a schedule: it recomputes something, and nothing before the boundary."""
    return bool(given.recomputes) and all(recompute.before >= problem.backward_start for recompute in given.recomputes)


def stages(problem: Problem) -> tuple[int, ...]:
    """Return a stage for every executed operation of the backward, by index from the boundary."""
    executed = accumulate(int(real) for real in problem.real[problem.backward_start :])
    return tuple(max(0, n - 1) for n in executed)


def windows_around(
    problem: Problem, stage: tuple[int, ...], given: Candidate, free: Collection[int]
) -> RecomputeWindows:
    """Return windows around a schedule.

    Operations outside `free` run again where they do in the schedule. Operations of `free` may run again wherever an
    operation that runs there reads their results.
    """
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
    """Return operations to decide on again. A program over them has about `most` recomputations to choose among."""
    weight = [0] * len(problem.real)
    for recompute in given.recomputes:
        weight[recompute.op] += problem.time[recompute.op] + 1
    costly = [f for f in problem.forward if weight[f]]
    at = {f: n for n, f in enumerate(problem.forward)}
    centres: list[tuple[int, float]] = []
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
    """Return recomputations that a program finds better than those of `best`, if any, and whether it was solved to
    the end."""
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
    """Return the number of neighbourhoods. Building a program takes time in proportion to the step."""
    size = max(1, len(instance.problem.forward))
    return max(1, int(request.effort.neighbourhoods * min(1.0, USUAL / size)))


NEIGHBOURHOODS = Strategy(
    "neighbourhoods",
    "integer programs for some operations of the best schedule, all other recomputations stay",
    neighbourhoods,
    reference="P. Shaw, Using constraint programming and local search methods to solve vehicle routing problems, "
    "CP 1998",
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
