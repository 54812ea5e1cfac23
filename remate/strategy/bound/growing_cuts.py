"""Schedules from the integer program of cuts, with cuts where they are needed.

The program of `cut_model` counts memory at its cuts only. So its solution is a bound, and says which storages are in
memory at each cut, and which operations run again between two cuts. Placed late, these recomputations are a schedule.
If it fits the budget, no schedule is faster. If not, it exceeds the budget at some operations, and these become cuts.
Solvers call this lazy constraints, or row generation. A few cuts often suffice, because memory is scarce at a few
operations.

Two things keep a schedule from the bound: a storage is computed once between two cuts and stays until its last read
there, and recomputations need memory for themselves. Where the excess is at a cut, or during recomputations before it,
that cut gets a smaller budget. From then on the program proves nothing. Greedy search (`local.squeeze`) repairs
schedules that exceed the budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from remate_runtime.flat_step import FlatRecompute

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..effort import Effort, part_of
from ..instance import StepInstance
from ..local.ledger import Ledger
from ..local.polish import as_late_as_possible, polish, pruned
from ..local.squeeze import MoveRanking, squeeze
from ..milp.highs import SOLVER, Result
from .cut_model import CutModel, CutSolution, variables
from .cuts import cut_model, level_at, step_of
from .floor import forced_bytes

LARGEST = 600  # variables of a model for each cut that the effort tries
FEW = 2  # cuts up to which a model also has long stretches, which make the relaxation stronger and slower
MOST = 3  # cuts that one schedule adds
ROUNDS = 24
WORK = 4.0  # work of all solves together, as a multiple of the effort's
EACH, LEAST = 1 / 3, 0.1  # work of one solve: a share of what is left, but at least this multiple of the effort's
# While schedules exceed the budget, a solve ends at this share of the gap of the best schedule, or, without one, at
# this many % of the step's time: further cuts raise the bound more than further search.
ROUGH, UNKNOWN = 0.05, 0.5
# A relaxation that takes this share of the effort's work makes the search slow, because HiGHS cannot be ended at its
# root. Then the search ends as soon as further cuts raise the bound by less than this many % of the step's time.
HEAVY, WORTH = 0.05, 0.02
# The search also ends after this many solves that gave neither a better bound, by `WORTH`, nor a better schedule, and
# took more than this share of the effort's visits.
FRUITLESS, CHEAP = 2, 0.02
# Later strategies are left with the first share of the visits, or the second while each solve proves the third share of
# the gap.
LEFT, LEAST_LEFT, CLOSED = 0.5, 0.25, 0.1
REPAIR = 0.1  # share of the effort of local search for one repair
LOWER = 0.0005  # share of the budget by which the budget of a cut falls beyond the excess
LOCALITY = 0.5  # of the ranking of repairs


def growing_cuts(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Solve the program of cuts, place its recomputations, and add cuts where the schedule exceeds the budget.

    A bound that it proves goes to the context.

    Source:
        G. Dantzig, R. Fulkerson, S. Johnson, "Solution of a large-scale traveling-salesman problem", Journal of the
        Operations Research Society of America 2, 1954.
    From the paper:
        A relaxation is solved, constraints that its solution violates are added, and it is solved again.
    Differences:
        A constraint is the memory at one operation, with variables of its own for what is in memory there. The
        formulation is remate's.
    """
    search, problem = _Cuts(instance, request, context), instance.problem
    ranking, effort = MoveRanking(LOCALITY), part_of(request.effort, REPAIR)
    for _ in range(ROUNDS):
        solved = search.solve()
        if solved is None:
            return
        candidate = yield Proposal(solved)
        if candidate.peak <= request.budget:
            yield from polish(problem, candidate, request.budget, context.deadline)
            if not search.rough:
                return
            search.rough = False
            continue
        repaired = squeeze(problem, solved, request.budget, effort, context.deadline, ranking=ranking)
        candidate = yield Proposal(repaired)
        if candidate.peak <= request.budget:
            yield from polish(problem, candidate, request.budget, context.deadline)
        if search.stalled or not search.grow(solved):
            return


class _Cuts:
    """The cuts so far.

    Attributes:
        places: Operations of the cuts, ascending.
        less: Bytes by which the budget is smaller at some of them.
        rough: Whether solves end early.
        stalled: Whether further cuts are not worth their time.
        work: Work that is left for the solver.
        reached: Additional time in % that the latest solve proved.
        fruitless: Long solves that gave nothing.
    """

    def __init__(self, instance: StepInstance, request: Request, context: Context) -> None:
        self.instance, self.request, self.context = instance, request, context
        self.problem = problem = instance.problem
        self.forced = forced_bytes(problem)
        self.places = [max(problem.backward, key=lambda i: (level_at(problem, self.forced, i), -i))]
        self.less: dict[int, int] = {}
        self.rough, self.stalled = True, False
        self.work, self.reached = WORK * request.effort.work, 0.0
        self.fruitless, self._known, self._spent = 0, (context.bound, context.best), context.deadline.spent
        self._first_left = context.deadline.left()

    def solve(self) -> tuple[FlatRecompute, ...] | None:
        """Return the schedule of the program's solution, or None if the search ends."""
        model, effort = self._model(), self.request.effort
        if model is None or self._ends(model):
            return None
        each = replace(effort, work=max(EACH * self.work, LEAST * effort.work))
        relaxed = self._solve(model, each, relax=True)
        solved = self._solve(model, each, relax=False)
        self.work -= solved.work
        heavy = relaxed.work > HEAVY * effort.work
        self.stalled = heavy and (bool(self.less) or solved.bound < self.reached + WORTH)
        self.reached = max(0.0, solved.bound)
        if not self.less and solved.bound > 0.0 and self.instance.provable is self.instance:
            self.context.bound = max(self.context.bound, model.nanoseconds(solved.bound))
        if solved.x is None or self.context.deadline.stopped():
            return None
        return tuple(placed(model, self.places, model.choice(solved.x)))

    def _ends(self, model: CutModel) -> bool:
        """Return whether the search has used its work, or gives nothing any more."""
        (bound, best), context = self._known, self.context
        fruitful = best is not context.best or context.bound > bound + WORTH * model.percent
        took, self._spent = context.deadline.spent - self._spent, context.deadline.spent
        self.fruitless += not fruitful and took > CHEAP * self.request.effort.visits
        slow = context.best is None or context.bound - bound < CLOSED * (context.best.time - bound)
        least = (LEFT if slow else LEAST_LEFT) * self._first_left
        self._known = (context.bound, context.best)
        return self.work <= 0 or self.fruitless >= FRUITLESS or context.deadline.left() < least

    def _model(self) -> CutModel | None:
        """Return the model for these cuts, or None if it would be too large, or if nothing could run again."""
        step, count = self.instance.view(step_of), len(self.places)
        kind = "long" if count <= FEW else "short"
        if not step.storages or variables(step, count, kind) > LARGEST * self.request.effort.cuts:
            return None
        return self.instance.view(cut_model, count, kind)

    def _solve(self, model: CutModel, effort: Effort, *, relax: bool) -> Result:
        context, best = self.context, self.context.best
        far = UNKNOWN if best is None else ROUGH * (best.time - context.bound) / model.percent
        return model.solve(
            context.deadline,
            self.request.budget,
            effort,
            self.places,
            self.forced,
            relax=relax,
            less=self.less,
            start=None if relax else self._start(model),
            target=(context.enough - self.problem.baseline_time) / model.percent,
            gap=far if self.rough else 0.0,
        )

    def _start(self, model: CutModel) -> np.ndarray | None:
        """Return the solution of the best known schedule, if it is one of the model."""
        best, first = self.context.best, self.problem.backward_start
        if best is None or self.less or best.order is not None or any(r.before < first for r in best.recomputes):
            return None
        return model.start(self.places, list(live_at(Ledger(self.problem, best.recomputes), self.places)))

    def grow(self, recomputes: tuple[FlatRecompute, ...]) -> bool:
        """Add cuts where a schedule exceeds the budget, or make the budget of cuts smaller. Return whether it does."""
        over, budget = list(excess(Ledger(self.problem, recomputes), self.request.budget)), self.request.budget
        worst = _worst(over, self.places)
        if len(worst) == 1:
            first, last = self.problem.backward[0], self.problem.backward[-1]
            middles = [(a + b) // 2 for a, b in pairwise([first, *self.places, last])]
            worst = _worst(over, sorted({*self.places, *middles}))
        new = sorted((live, i) for i, live in worst.items() if i not in self.places)
        self.places = sorted({*self.places, *(i for _, i in new[-MOST:])})
        for i, live in worst.items() if not new else ():
            self.less[i] = self.less.get(i, 0) + live - budget + int(LOWER * budget)
        return bool(worst)


def _worst(over: list[tuple[int, int]], ends: list[int]) -> dict[int, int]:
    """Return, for each stretch between `ends`, the operation with most bytes, and these bytes."""
    worst: dict[int, tuple[int, int]] = {}
    for i, live in over:
        stretch = bisect_left(ends, i)
        worst[stretch] = max(worst.get(stretch, (live, i)), (live, i))
    return {i: live for live, i in worst.values()}


def excess(ledger: Ledger, budget: int) -> Iterator[tuple[int, int]]:
    """Yield operations of the backward at which a schedule exceeds the budget, or before which its recomputations do.

    Yields:
        The operation, and the bytes that are live.
    """
    backward = ledger.problem.backward
    following, live = backward[-1], ledger.live.tolist()
    for step in range(len(ledger.order) - 1, -1, -1):
        if ledger.again[step] < 0 and ledger.order[step] >= 0:
            following = max(ledger.order[step], backward[0])
        if live[step] > budget:
            yield following, live[step]


def live_at(ledger: Ledger, places: list[int]) -> Iterator[frozenset[int]]:
    """Yield the storages that are in memory while the first run of each of these operations runs."""
    step = {op: n for n, op in enumerate(ledger.order) if ledger.again[n] < 0}
    for i in places:
        lives = (ledger.birth < step[i]) & (ledger.death >= step[i])
        yield frozenset(ledger.storage[lives].tolist())


def placed(model: CutModel, places: list[int], choice: CutSolution) -> list[FlatRecompute]:
    """Return the recomputations of a solution, each just before the first operation that needs it after the cut."""
    problem, step = model.problem, model.step
    ends, recomputes = [*places, len(problem.real)], list[FlatRecompute]()
    for c, again in enumerate(choice.recompute):
        before: dict[int, int] = {}
        for f in sorted(again, reverse=True):
            missing = [s for s in step.writes[f] if (s, c) not in choice.hold]
            reads = [i for s in missing for i in step.readers[s]]
            points = [before[i] for i in reads if i in before]
            points += [i for i in reads if i >= problem.backward_start and ends[c] < i <= ends[c + 1]]
            if not points and any((s, c + 1) in choice.hold for s in missing):
                points = [ends[c + 1]]
            if points:
                before[f] = min(points)
        recomputes += [FlatRecompute(g, at) for f, at in before.items() for g in step.runs[f]]
    recomputes.sort(key=lambda recompute: (recompute.before, recompute.op))
    late = as_late_as_possible(problem, pruned(problem, recomputes))
    return min((late, recomputes), key=lambda plan: Ledger(problem, plan).peak)


GROWING_CUTS = Strategy(
    "growing-cuts",
    "integer program over a few cuts of the backward, with more cuts where its schedule exceeds the budget",
    growing_cuts,
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
