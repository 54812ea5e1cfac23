"""The useful plans of one block: the trade-off between bytes retained from forward to backward, and time.

A block is solved alone, once for all instances of its template. With a price of λ ns per byte retained, the retention
model minimises time + λ * bytes retained. Dichotomy finds the prices at which the solution changes (Aneja and Nair,
"Bicriteria transportation problem", Management Science 25, 1979). This is done under several limits on the block's own
peak.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from ...partition.leaf_graph import LeafGraph
from ..deadline import Deadline
from ..effort import Effort
from ..milp.formulation import Formulation
from ..milp.place import place
from ..milp.windows import recompute_windows
from ..pareto import undominated
from ..problem import Problem
from ..solver_choice import HIGHS
from .block_plan import BlockPlan, simulated_plan

MOST = 10  # plans of a block
LIMITS = (1.0, 0.8, 0.6)  # on the block's own peak, as shares of its peak without recomputation


def block_frontier(
    leaf: LeafGraph, deadline: Deadline, effort: Effort, once: Collection[int] = (), solver: str = HIGHS
) -> list[BlockPlan]:
    """Return plans of a block that no other dominates, ordered by retained bytes. The plan without recomputation is
    always included.

    Args:
        leaf: The block as a step.
        deadline: Ends the search early.
        effort: How hard to search.
        once: Operations of the block that may not run again.
        solver: Name of the solver of integer programs.
    """
    keep = simulated_plan(leaf, ())
    plans = {keep.recomputes: keep}
    problem = Problem(leaf.graph, once)
    allowed = [f for f in _needed(problem) if f not in problem.once]
    if allowed and leaf.graph.backward_start < len(leaf.graph.operations):
        windows = recompute_windows(
            problem, [0] * (len(problem.real) - problem.backward_start), {f: {0} for f in allowed}
        )
        peak = max(keep.forward_peak, keep.backward_peak)
        formulation = Formulation(problem, windows, peak, solver)
        for limit in LIMITS:
            for plan in trade_off(
                _Prices(leaf, formulation, limit * peak, deadline, effort).solve, effort.prices, deadline
            ):
                plans.setdefault(plan.recomputes, plan)
    return worth_having(plans.values(), keep)


def _needed(problem: Problem) -> list[int]:
    """Return forward operations whose results backward may read again."""
    needed: set[int] = set()
    for f in reversed(problem.forward):
        inner = [s for s in problem.writes[f] if s not in problem.pinned]
        if any(i >= problem.backward_start or i in needed for s in inner for i in problem.readers[s]):
            needed.add(f)
    return sorted(needed)


def trade_off(solve: Callable[[float], BlockPlan | None], solves: int, deadline: Deadline) -> Iterator[BlockPlan]:
    """Yield plans for all prices of retained bytes, by dichotomy.

    Args:
        solve: Maps a price in ns per byte to the best plan at that price.
        solves: The most calls of `solve`.
        deadline: Ends the search early.
    """
    cheap, small = solve(1e-9), solve(1e6)
    left, pairs = solves - 2, [(cheap, small)]
    yield from (plan for plan in (cheap, small) if plan is not None)
    while pairs and left > 0 and not deadline.stopped():
        a, b = pairs.pop(0)
        if a is None or b is None or a.retained <= b.retained or b.time <= a.time:
            continue
        price = (b.time - a.time) / (a.retained - b.retained)
        left -= 1
        middle = solve(price)
        if middle is None or middle.time + price * middle.retained >= a.time + price * a.retained - 1:
            continue
        yield middle
        pairs += [(a, middle), (middle, b)]


class _Prices:
    """The plans of a block under one limit on its peak, for all prices of retained bytes."""

    def __init__(
        self, leaf: LeafGraph, formulation: Formulation, limit: float, deadline: Deadline, effort: Effort
    ) -> None:
        self.leaf, self.formulation, self.limit = leaf, formulation, limit
        self.deadline, self.effort = deadline, effort
        problem = formulation.problem
        sizes = [problem.size[key[1]] if key[0] == "hold" else 0 for key in formulation.keys]
        self._columns, self._bytes = formulation.columns, np.array(sizes, dtype=float)
        self._time = formulation.time_cost

    def solve(self, price: float) -> BlockPlan | None:
        """Return the best plan at a price in ns per retained byte."""
        form, cost = self.formulation, self._time.copy()
        known = self._columns >= 0
        np.add.at(cost, self._columns[known], price * self._bytes[known] / form.percent)
        result = form.priced(self.deadline, cost, self.limit, self.effort)
        if result.x is None:
            return None
        return simulated_plan(self.leaf, tuple(place(form.problem, form.windows, form.chosen(result))))


def worth_having(plans: Iterable[BlockPlan], keep: BlockPlan) -> list[BlockPlan]:
    """Return plans that no other dominates, at most MOST of them; `keep` is always among them."""
    return _thinned(_undominated(plans), keep)


def _undominated(plans: Iterable[BlockPlan]) -> list[BlockPlan]:
    """Remove plans that another plan equals or beats in every figure, and order the others by retained bytes."""
    kept = undominated(sorted(plans, key=lambda plan: len(plan.recomputes)), lambda plan: plan.figures)
    return sorted(kept, key=lambda plan: (plan.retained, plan.time))


def _thinned(plans: list[BlockPlan], keep: BlockPlan) -> list[BlockPlan]:
    """Return at most MOST plans, evenly spread over retained bytes, with the first, the last and `keep`."""
    if len(plans) > MOST:
        plans = [plans[round(n * (len(plans) - 1) / (MOST - 1))] for n in range(MOST)]
    return plans if keep in plans else [*plans, keep]
