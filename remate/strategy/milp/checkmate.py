"""Checkmate: the integer program of `every_stage` solved as such, or its relaxation, rounded.

The rounding is that of the paper (section 4.6, deterministic): what the relaxation holds by more than a half is held,
and the runs follow from that, each stage individually; since rounding may exceed the budget, the relaxation is solved
for a little less. "Optimal" refers to the model: an operation runs again at most once in a stage, in step order.

What differs: storages take the place of values, and operations that cannot serve a later stage have no variables there.
The model still grows with the square of the step: about 1.1 n^2 variables for n operations of forward and backward. So
it goes up to about 50 operations by quick effort, 90 by normal and 290 by thorough effort; a larger step is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from remate_runtime.flat_step import FlatRecompute

from ...errors import NotApplicableError
from ..base import Context, Proposal, Proposals, Request, Strategy
from ..feedback import Answer, feedback
from ..instance import StepInstance
from ..local.polish import pruned
from .every_stage import EveryStage
from .highs import SMALLEST, SOLVER, SolveOptions
from .horizon import Horizon, horizon

LARGEST = 150  # most variables of a model, per node of the effort
GROWTH = 1.1  # variables of a model, over the square of the operations of its step
MARGINS = (0.0, 0.02, 0.05, 0.1, 0.2)  # shares of the budget that are reserved for rounding
THRESHOLDS = (0.5, 0.25, 0.75)
NODES = 40  # nodes as a multiple of the effort's, because only one model is solved
WORK = 10  # work of a relaxation as a multiple of the effort's
GAP = 1e-4  # % of the step's time, smaller than any published figure
TOLERANCE = 0.005
PAPER = "P. Jain et al., Checkmate, MLSys 2020"


def checkmate(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Solve the model, corrected by the simulator's figures. If nothing fits, propose its smallest peak.

    Source:
        P. Jain, A. Jain, A. Nrusimha, A. Gholami, P. Abbeel, K. Keutzer, I. Stoica, J. E. Gonzalez, "Checkmate:
        Breaking the memory wall with optimal tensor rematerialization", MLSys 2020.
    From the paper:
        The integer program with frontier-advancing stages: runs, held values, and frees per stage, with memory counted
        at every operation. Its optimum is proven, where an operation runs at most once per stage, in step order.
    Differences:
        Rows for frees replace the paper's big-M rows, because their relaxation is stronger. Storages replace values,
        and operations that cannot serve a later stage have no variables. Several outputs, workspace and in-place
        results are added, because real steps have them. The model has about 1.1 n^2 variables for n operations, so it
        solves about 50 operations with quick effort, 90 with normal and 290 with thorough effort, and refuses larger
        steps.
    """
    model = _model(instance, request)

    gap = max(GAP, 50.0 * request.gap)  # half of the requested gap, in %

    def ask(budget: float) -> Answer[None] | None:
        model.limit(budget)
        model.engine.set_cost(model.time_cost)
        effort = request.effort
        result = model.engine.solve(
            context.deadline,
            SolveOptions(stage="checkmate", absolute_gap=gap, nodes=NODES * effort.nodes, work=effort.work),
        )
        if result.x is None:
            return None
        # The model counts exactly as the simulator does, or less.
        return Answer(_needed(instance, model.recomputes(result.x)), 0.0, None)

    outcome = yield from feedback(request, context, ask)
    if outcome.best is None:
        yield from _smallest(instance, request, context, model)


def rounded(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Round relaxations for a little less than the budget. The proposals include the fastest schedule that fits.

    Source:
        P. Jain, A. Jain, A. Nrusimha, A. Gholami, P. Abbeel, K. Keutzer, I. Stoica, J. E. Gonzalez, "Checkmate:
        Breaking the memory wall with optimal tensor rematerialization", MLSys 2020, section 4.6.
    From the paper:
        Two-phase rounding: values that the relaxation holds by more than a half are held, runs follow from that stage
        by stage, and the budget of the relaxation is reduced.
    Differences:
        Three thresholds and five reductions are tried, because each costs little. Otherwise as `checkmate`.
    """
    model, fits = _model(instance, request), False
    relaxation = SolveOptions(stage="relaxation", work=WORK * request.effort.work, relax=True)
    model.engine.set_cost(model.time_cost)
    for margin in MARGINS:
        model.limit((1.0 - margin) * request.budget)
        result = model.engine.solve(context.deadline, relaxation)
        if result.x is None:
            break
        for threshold in THRESHOLDS:
            candidate = yield Proposal(_needed(instance, _rounded(model, model.held(result.x), threshold)))
            fits |= candidate.peak <= request.budget
    if fits:
        return
    model.limit(float(instance.baseline.peak))
    model.engine.set_cost(_peak_cost(model))
    result = model.engine.solve(context.deadline, relaxation)
    if result.x is not None:
        for threshold in THRESHOLDS:
            yield Proposal(_needed(instance, _rounded(model, model.held(result.x), threshold)))


def checkmate_fits(instance: StepInstance, request: Request) -> bool:
    """Return whether the model of a step is small enough for the effort."""
    return instance.view(horizon).variables <= LARGEST * request.effort.nodes


def _model(instance: StepInstance, request: Request) -> EveryStage:
    if not checkmate_fits(instance, request):
        size, most = instance.view(horizon).variables, LARGEST * request.effort.nodes
        raise NotApplicableError(
            f"the strategy 'checkmate' solves models of up to {most:,} variables with {request.effort.name} effort, "
            f"which is about {math.isqrt(int(most / GROWTH))} operations, and its model of this step has about "
            f"{size:,}\n  hint: use more effort, another strategy, or auto"
        )
    return instance.view(EveryStage, request.solvers.milp)


def _smallest(instance: StepInstance, request: Request, context: Context, model: EveryStage) -> Proposals[None]:
    """Propose the smallest peak of the model. It does not depend on the budget."""
    model.limit(float(instance.baseline.peak))
    model.engine.set_cost(_peak_cost(model))
    result = model.engine.solve(
        context.deadline,
        SolveOptions(
            stage=SMALLEST,
            relative_gap=TOLERANCE,
            nodes=NODES * request.effort.nodes,
            work=request.effort.work,
        ),
    )
    if result.x is not None:
        yield Proposal(_needed(instance, model.recomputes(result.x)))


def _peak_cost(model: EveryStage) -> np.ndarray:
    cost = 0.0 * model.time_cost
    cost[model.peak_column] = 1.0
    return cost


def _needed(instance: StepInstance, recomputes: tuple[FlatRecompute, ...]) -> tuple[FlatRecompute, ...]:
    return tuple(pruned(instance.problem, recomputes))


def _rounded(model: EveryStage, held: Mapping[tuple[int, int], float], threshold: float) -> tuple[FlatRecompute, ...]:
    """Return runs that compute the held storages, and the needs of each stage, from storages held before it."""
    problem, about = model.problem, model.about
    resident: set[int] = set()  # storages resident when the stage begins
    recomputes: list[FlatRecompute] = []
    for t, operation in enumerate(about.operations):
        keep = {s for s in model.maker if held.get((t + 1, s), 0.0) > threshold or _must(about, s, t + 1)}
        keep = {s for s in keep if model.maker[s] <= t}
        wanted = [s for s in (*problem.reads[operation], *keep) if s not in resident and model.maker[s] != t]
        again: set[int] = set()
        while wanted:
            s = wanted.pop()
            if s in resident or model.maker[s] in again:
                continue
            if not about.again[model.maker[s]]:
                resident.add(s)  # it must have been held; the simulator counts its memory
                continue
            again.add(model.maker[s])
            wanted += problem.reads[about.operations[model.maker[s]]]
        recomputes += [FlatRecompute(about.operations[n], operation) for n in sorted(again)]
        resident = keep
    return tuple(recomputes)


def _must(about: Horizon, s: int, t: int) -> bool:
    return s in about.pinned and about.pinned[s] <= t <= about.until[s]


CHECKMATE = Strategy(
    "checkmate",
    "integer program with a stage for every operation: exact for small steps",
    checkmate,
    reference=PAPER,
    solver=SOLVER,
    options=frozenset({"milp"}),
)
CHECKMATE_APPROX = replace(
    CHECKMATE, name="checkmate-approx", summary="Checkmate's relaxation, rounded", propose=rounded
)
