"""Plans of a stage that need little memory while it runs, for the smallest budgets.

Plans of `blocks.block_frontier` trade bytes that the block retains for time. In them, an operation runs again once, at
its first need. Near the floor, the peak of a block that runs from its input and then backward at once is what counts,
and some operations must run again twice. Greedy search (`local.squeeze`) finds such plans down to the block's own
proven floor, from the empty plan, and from the plan that retains nothing.
"""

from __future__ import annotations

from ..blocks.block_plan import BlockPlan, simulated_plan
from ..deadline import Deadline
from ..effort import Effort, part_of
from ..instance import StepInstance
from ..local.polish import as_late_as_possible, pruned
from ..local.squeeze import MoveRanking, squeeze
from ..pareto import undominated
from .chain import Chain

PEAKS = (1.0, 1.03, 1.06, 1.1, 1.15, 1.22, 1.3, 1.4, 1.55, 1.75, 2.0, 2.5)  # budgets, as multiples of the floor
RANKINGS = (0.0, 0.5)  # localities of `MoveRanking`
SHARE = 0.002  # share of the effort for one search
LARGE = 320  # forward operations; greedy search is too slow for larger stages


def lean_plans(chain: Chain, k: int, effort: Effort, deadline: Deadline) -> list[BlockPlan]:
    """Return plans of stage k of which none dominates another."""
    leaf = chain.leaf[k]
    instance, least = StepInstance(leaf.graph), part_of(effort, SHARE)
    problem, plans = instance.problem, list[BlockPlan]()
    if not instance.has_backward or len(problem.forward) > LARGE:
        return []
    for share in PEAKS:
        budget = int(share * instance.floor)
        if budget >= instance.baseline.peak:
            break
        for start in ((), chain.drop[k].recomputes):
            for locality in RANKINGS:
                if deadline.stopped():
                    return []
                recomputes = squeeze(problem, start, budget, least, deadline, ranking=MoveRanking(locality))
                plans.append(simulated_plan(leaf, tuple(as_late_as_possible(problem, pruned(problem, recomputes)))))
    return undominated(sorted(plans, key=lambda plan: len(plan.recomputes)), lambda plan: plan.figures)
