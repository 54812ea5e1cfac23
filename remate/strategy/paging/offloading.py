"""`weight-offloading`: pages parameters and their gradients, for models whose parameters exceed the budget.

The method is that of Beaumont, Eyraud-Dubois, Shilova and Zhao, "Weight Offloading Strategies for Training Large DNN
Models" (2022, HAL hal-03580767). It chooses which weights are away between two uses, and when they return through a
lane of limited bandwidth. The paper has an integer program that selects the weights, a heuristic that schedules the
transfers, and a greedy selection for models that are too large for the program.

This implementation differs in four points. The step consists of operations, not of layers, and a weight can have more
than two reads. Weights can be away between steps; in the paper the optimizer runs on the host. Gradients are chosen
individually. The simulator judges every selection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from remate_runtime.flat_step import Graph
from remate_runtime.format import PageMemory
from remate_runtime.link import link, parameter_bytes, simulate

from ...errors import InfeasibleError
from ..base import Request
from ..deadline import Deadline
from ..instance import StepInstance
from ..milp.formulation import linear
from ..milp.highs import SOLVER, HighsModel, SolveOptions, binaries
from ..pyomo_api import pyo
from ..solve import Solution
from .greedy import Paged
from .proof import proven
from .weights import Absence, WeightedStep, pages_of, weighted_step

_CORRECTIONS = 6  # retries with a smaller target: the linker can hold more than the slots predict
_NODES = 2000  # nodes of the search tree of the integer program
_FEWER = 1e-9  # cost of an absence of a parameter: of equal stalls, fewer absences
_TOLERANCE = 1e-6  # share of the proven stalls that the solver may be wrong by
_SINCE = 24  # slots at which the integer program begins a constraint of the lane


def offloaded(
    instance: StepInstance,
    request: Request,
    to: PageMemory,
    limit: int,
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Solution:
    """Return the fastest schedule that recomputes nothing and fits, parameters included.

    Args:
        instance: The step, with the lanes of its graph.
        request: The request; `budget` is of the device, and parameters count.
        to: The memory that parameters and gradients are paged to.
        limit: Most bytes in that memory.
        time_limit: Seconds for the integer program.
        progress: Called with a line of text at each stage.

    Returns:
        The solution. Its bound is of all schedules that page parameters and gradients, and recompute nothing.

    Raises:
        InfeasibleError: The step does not fit, even with all its parameters and gradients paged.
    """
    step, base = weighted_step(instance.graph, to), instance.baseline
    stalls, exact = _exact(step, request.budget, time_limit)
    bound = base.time + stalls
    candidates: list[tuple[Paged, str]] = []

    def program(target: int) -> list[Absence] | None:
        return exact if target == request.budget else _exact(step, target, time_limit)[1]

    for name, select in (
        ("integer program", program),
        ("greedy by span", partial(_greedy, step, by_span=True)),
        ("greedy by size", partial(_greedy, step, by_span=False)),
    ):
        paged = _judged(step, select, request.budget, limit)
        candidates += [(paged, name)] if paged is not None else []
        progress(f"{name}: {'no schedule fits' if paged is None else f'{_more(paged.time, base.time)} more time'}")
    if not candidates:
        held = step.held - _most(step)
        peak = simulate(link(step.graph, (), pages_of(step, step.absences, int(held.max())) or ())).peak
        raise InfeasibleError(
            request.budget,
            peak,
            min(_floor(step.graph), peak),
            "weight-offloading",
            None,
            base.peak + parameter_bytes(step.graph),
            struck=False,
            holder="",
        )
    best, name = min(candidates, key=lambda candidate: (candidate[0].time, len(candidate[0].pages)))
    solution = Solution(
        (),
        best.peak,
        best.time,
        base.peak,
        base.time,
        bound,
        0.0,
        "heuristic",
        "weight-offloading",
        SOLVER if name == "integer program" else base.solver,
        pages=best.pages,
    )
    return proven(solution, bound)


def _most(step: WeightedStep) -> np.ndarray:
    """Return the bytes that can be away in each slot."""
    return sum((step.covered(absence) * absence.nbytes for absence in step.absences), np.zeros_like(step.held))


def _floor(graph: Graph) -> int:
    """Bytes of the largest operation: its arguments, results and workspace."""
    return max(
        (
            op.workspace
            + sum(graph.nbytes(v) for v in {graph.root[v] for v in (*op.reads, *op.writes) if v is not None})
            for op in graph.operations
            if not op.view
        ),
        default=0,
    )


def _more(time: int, base: int) -> str:
    return f"{(time / (base or 1) - 1) * 100:.2f}%"


def _judged(
    step: WeightedStep, select: Callable[[int], Sequence[Absence] | None], budget: int, limit: int
) -> Paged | None:
    """Simulate a selection. Lower its target and select again while the result exceeds the budget."""
    if int(step.held.max()) <= budget:
        unpaged = simulate(link(step.graph))
        return Paged((), (), unpaged.peak, unpaged.time)
    target, parameters = budget, parameter_bytes(step.graph)
    for _ in range(_CORRECTIONS):
        chosen = select(target)
        pages = None if chosen is None else pages_of(step, chosen, target)
        if pages is None:
            return None
        linked = link(step.graph, (), pages)
        timeline = simulate(linked)
        over = timeline.peak + (0 if linked.parameters_paged else parameters) - budget
        if over <= 0:
            return Paged((), pages, timeline.peak, timeline.time) if sum(timeline.paged.values()) <= limit else None
        target -= over
    return None


def _greedy(step: WeightedStep, target: int, *, by_span: bool) -> list[Absence] | None:
    """Add the best absence of the fullest slot until all slots fit; then drop absences that are not needed.

    The score is bytes times the time away divided by the time of the copy, or the number of bytes.
    """
    held, left, chosen = step.held.copy(), list(step.absences), list[Absence]()
    covered = {absence: step.covered(absence) for absence in left}
    spans = np.append(np.diff(step.begins), 1.0)

    def score(absence: Absence) -> tuple[float, int]:
        copy = step.out(absence) if absence.read is None else step.back(absence)
        hidden = float(spans[covered[absence]].sum()) if absence.read is not None else 0.0
        return (absence.nbytes * (hidden + 1.0) / copy if by_span else float(absence.nbytes)), -absence.value

    while held.max() > target:
        slot = int(held.argmax())
        available = [absence for absence in left if covered[absence][slot]]
        if not available:
            return None
        best = max(available, key=score)
        left.remove(best)
        chosen.append(best)
        held[covered[best]] -= best.nbytes
    for absence in sorted(chosen, key=score):
        if (held[covered[absence]] + absence.nbytes).max() <= target:
            chosen.remove(absence)
            held[covered[absence]] += absence.nbytes
    return chosen


def _exact(step: WeightedStep, target: int, time_limit: float | None) -> tuple[int, list[Absence] | None]:
    """Minimize stalls by an integer program. Return its proven bound in ns, and the best absences.

    Binary variables select absences. In every slot that exceeds the target, the selected absences cover the excess.
    Copies back run one after another: for slots j < k, the copies that start at or after j and are read at or before k
    take no longer than the step from j to k, stalls included: those of parameters after j, and the copies of gradients
    from j to k, for which the step always waits. The program ignores that memory can delay a copy, which `pages_of`
    considers later, and that the linker can hold more than `step.held`. Its optimum is therefore a lower bound of the
    stalls, as in the paper.
    """
    if int(step.held.max()) <= target:
        return 0, []
    absences, over = step.absences, np.flatnonzero(step.held > target)
    covered = [step.covered(absence) for absence in absences]
    if (step.held - _most(step) > target).any():
        return 0, None
    unit, scale = max(1.0, float(step.held.max())), max(1.0, float(step.begins[-1]))
    model: Any = pyo.ConcreteModel()
    model.away = pyo.Var(range(len(absences)), domain=pyo.Binary)
    reads = sorted({absence.read for absence in absences if absence.read is not None})
    model.waited = pyo.Var(range(len(reads) + 1), bounds=(0, None))
    numbers = range(len(absences))

    def relieved(m: Any, slot: int) -> Any:
        present = [n for n in numbers if covered[n][slot]]
        excess = float(step.held[slot]) - target
        return linear([m.away[n] for n in present], [absences[n].nbytes / unit for n in present]) >= excess / unit

    model.relieved = pyo.Constraint([int(slot) for slot in over], rule=relieved)

    def order(m: Any, k: int) -> Any:
        return linear([m.waited[k + 1], m.waited[k]], [1.0, -1.0]) >= 0

    model.order = pyo.Constraint(range(len(reads)), rule=order)
    gradients = [n for n in numbers if absences[n].read is None]
    since = sorted({0, step.graph.backward_start, *reads[:: max(1, len(reads) // _SINCE)]})

    def lane(m: Any, j: int, k: int) -> Any:
        fetched = [
            n for n in numbers if (read := absences[n].read) is not None and absences[n].first >= j and read <= reads[k]
        ]
        if not fetched or reads[k] <= j:
            return pyo.Constraint.Skip
        before = sum(read < j for read in reads)  # a copy that starts at j may do so before the step waits there
        sent = [n for n in gradients if j <= absences[n].first <= reads[k]]
        terms = [*(m.away[n] for n in (*fetched, *sent)), m.waited[k + 1], m.waited[before]]
        copies = [*(step.back(absences[n]) for n in fetched), *(-step.out(absences[n]) for n in sent)]
        weights = [*(copy / scale for copy in copies), -1.0, 1.0]
        return linear(terms, weights) <= float(step.begins[reads[k]] - step.begins[j]) / scale

    model.lane = pyo.Constraint(since, range(len(reads)), rule=lane)
    model.cost = pyo.Objective(
        expr=linear(
            [model.waited[len(reads)], *(model.away[n] for n in numbers)],
            [1.0, *(step.out(absences[n]) / scale if n in set(gradients) else _FEWER for n in numbers)],
        )
    )
    engine = HighsModel(model)
    with Deadline(time_limit) as deadline:
        result = engine.solve(deadline, SolveOptions(stage="weights", relative_gap=0.01, nodes=_NODES))
    least = result.bound - _FEWER * len(absences) if result.bound < float("inf") else 0.0
    bound = math.ceil(max(0.0, least) * scale * (1 - _TOLERANCE))
    if result.x is None:
        return bound, None
    away = binaries(result.x, engine.columns(model.away.values()))
    return bound, [absence for absence, selected in zip(absences, away.tolist(), strict=True) if selected]
