"""`weight-offloading`: parameters and their gradients leave the device, for models whose parameters exceed the budget.

After Beaumont, Eyraud-Dubois, Shilova, Zhao: "Weight Offloading Strategies for Training Large DNN Models" (2022, HAL
hal-03580767): which weights are away between two uses, and when they are brought back through a lane of limited
bandwidth. Theirs is an integer program of what must leave and a heuristic that schedules the transfers, and a greedy
selection where the program is too large. Ours differ in this: a step is one of operations and not of layers; a gap is
any between two reads, of which a weight may have more than two; what is chosen may be away between steps, where theirs
has the optimizer on the host; gradients are chosen one by one; and every selection is judged by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from remate_runtime.flat_step import Graph
from remate_runtime.format import PageMemory
from remate_runtime.link import link, parameter_bytes, simulate

from ...errors import InfeasibleError
from ..base import Request
from ..deadline import Deadline
from ..instance import StepInstance
from ..milp.formulation import linear
from ..milp.highs import SOLVER, HighsModel, binaries
from ..solve import Solution
from .greedy import Paged
from .weights import Absence, WeightedStep, pages_of, weighted_step

_CORRECTIONS = 6  # of the aim, where the linker holds more than the slots say
_NODES = 2000  # of the search of the integer program
_SINCE = 24  # moments from which on the lane's work is counted, in the integer program


def offloaded(
    instance: StepInstance,
    request: Request,
    to: PageMemory,
    limit: int,
    *,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Solution:
    """The fastest schedule found that recomputes nothing and holds at most the budget, parameters included.

    Args:
        instance: The step; its lanes are those that the graph has.
        request: What is asked; `budget` is of the device, and parameters count.
        to: The memory that parameters and gradients go to.
        limit: Bytes that they may take there.
        time_limit: Seconds for the integer program.
        progress: Called with a line of text now and then.

    Raises:
        InfeasibleError: The step does not fit, whatever of its parameters and gradients is away.
    """
    step, base = weighted_step(instance.graph, to), instance.baseline
    candidates: list[tuple[Paged, str]] = []
    for name, select in (
        ("integer program", lambda aim: _exact(step, aim, time_limit)),
        ("greedy by span", lambda aim: _greedy(step, aim, True)),
        ("greedy by size", lambda aim: _greedy(step, aim, False)),
    ):
        found = _judged(step, select, request.budget, limit)
        candidates += [(found, name)] if found is not None else []
        progress(f"{name}: {'nothing that fits' if found is None else f'{_more(found.time, base.time)} more time'}")
    if not candidates:
        held = step.held - sum(step.covered(one) * one.nbytes for one in step.absences)
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
    best, name = min(candidates, key=lambda one: (one[0].time, len(one[0].pages)))
    return Solution(
        (),
        best.peak,
        best.time,
        base.peak,
        base.time,
        base.time,
        0.0,
        "heuristic",
        "weight-offloading",
        SOLVER if name == "integer program" else base.solver,
        pages=best.pages,
    )


def _floor(graph: Graph) -> int:
    """Bytes of the operation that needs most: what it reads and makes must be there while it runs."""
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
    """What a selection comes to by the simulator, the aim lowered where it takes too much."""
    if int(step.held.max()) <= budget:
        kept = simulate(link(step.graph))
        return Paged((), (), kept.peak, kept.time)
    aim, parameters = budget, parameter_bytes(step.graph)
    for _ in range(_CORRECTIONS):
        chosen = select(aim)
        pages = None if chosen is None else pages_of(step, chosen, aim)
        if pages is None:
            return None
        linked = link(step.graph, (), pages)
        timeline = simulate(linked)
        over = timeline.peak + (0 if linked.parameters_paged else parameters) - budget
        if over <= 0:
            return Paged((), pages, timeline.peak, timeline.time) if sum(timeline.paged.values()) <= limit else None
        aim -= over
    return None


def _greedy(step: WeightedStep, aim: int, by_span: bool) -> list[Absence] | None:
    """While a slot holds too much, what best leaves it: bytes times the time that it is away, over the time of the
    lane; or the largest. Then those return that the others have made needless."""
    held, left, chosen = step.held.copy(), list(step.absences), list[Absence]()
    covered = {one: step.covered(one) for one in left}
    spans = np.append(np.diff(step.begins), 1.0)

    def worth(one: Absence) -> tuple[float, int]:
        lane = step.out(one) if one.read is None else step.back(one)
        hidden = float(spans[covered[one]].sum()) if one.read is not None else 0.0
        return (one.nbytes * (hidden + 1.0) / lane if by_span else float(one.nbytes)), -one.value

    while held.max() > aim:
        at = int(held.argmax())
        able = [one for one in left if covered[one][at]]
        if not able:
            return None
        best = max(able, key=worth)
        left.remove(best)
        chosen.append(best)
        held[covered[best]] -= best.nbytes
    for one in sorted(chosen, key=worth):
        if (held[covered[one]] + one.nbytes).max() <= aim:
            chosen.remove(one)
            held[covered[one]] += one.nbytes
    return chosen


def _exact(step: WeightedStep, aim: int, time_limit: float | None) -> list[Absence] | None:
    """The least waiting that memory and the lane allow: an integer program.

    Binary variables say what is away; every slot that holds too much must be relieved of the excess. Copies back follow
    one another: for moments j < k, those that leave at or after j and are read at or before k take no longer than the
    step from j to k and what it waits meanwhile. When memory lets a copy begin is left to `pages_of`, so this is a
    lower bound of the waiting for parameters, as the paper's program is. A gradient is waited for."""
    absences, over = step.absences, np.flatnonzero(step.held > aim)
    covered = [step.covered(one) for one in absences]
    unit, scale = max(1.0, float(step.held.max())), max(1.0, float(step.begins[-1]))
    model: Any = pyo.ConcreteModel()
    model.away = pyo.Var(range(len(absences)), domain=pyo.Binary)
    reads = sorted({one.read for one in absences if one.read is not None})
    model.waited = pyo.Var(range(len(reads) + 1), bounds=(0, None))
    numbers = range(len(absences))

    def relieved(m: Any, slot: int) -> Any:
        able = [n for n in numbers if covered[n][slot]]
        if not able:
            return pyo.Constraint.Infeasible
        excess = float(step.held[slot]) - aim
        return linear([m.away[n] for n in able], [absences[n].nbytes / unit for n in able]) >= excess / unit

    model.relieved = pyo.Constraint([int(slot) for slot in over], rule=relieved)
    model.order = pyo.Constraint(
        range(len(reads)), rule=lambda m, k: linear([m.waited[k + 1], m.waited[k]], [1.0, -1.0]) >= 0
    )
    since = sorted({0, step.graph.backward_start, *reads[:: max(1, len(reads) // _SINCE)]})

    def lane(m: Any, j: int, k: int) -> Any:
        fetched = [
            n for n in numbers if (read := absences[n].read) is not None and absences[n].first >= j and read <= reads[k]
        ]
        if not fetched or reads[k] <= j:
            return pyo.Constraint.Skip
        before = sum(read <= j for read in reads)
        terms = [*(m.away[n] for n in fetched), m.waited[k + 1], m.waited[before]]
        weights = [*(step.back(absences[n]) / scale for n in fetched), -1.0, 1.0]
        return linear(terms, weights) <= float(step.begins[reads[k]] - step.begins[j]) / scale

    model.lane = pyo.Constraint(since, range(len(reads)), rule=lane)
    gradients = [n for n in numbers if absences[n].read is None]
    model.cost = pyo.Objective(
        expr=linear(
            [model.waited[len(reads)], *(model.away[n] for n in numbers)],
            [1.0, *(step.out(absences[n]) / scale if n in set(gradients) else 1e-9 for n in numbers)],
        )
    )
    try:
        engine = HighsModel(model)
    except ValueError:
        return None
    with Deadline(time_limit) as deadline:
        found = engine.solve(deadline, stage="weights", relative_gap=0.01, nodes=_NODES)
    if found.x is None:
        return None
    taken = binaries(found.x, engine.columns(model.away.values()))
    return [one for one, chosen in zip(absences, taken.tolist(), strict=True) if chosen]
