"""The hierarchical strategy: plans of every distinct block, each computed once, and the best plan for each instance."""

from __future__ import annotations

from ..base import MENU, Context, Proposal, Proposals, Request, Strategy
from ..deadline import Deadline
from ..effort import Effort
from ..feedback import Answer, feedback
from ..instance import StepInstance
from ..milp.highs import SOLVER
from ..milp.retention import TIGHT
from .block_selection import BlockSelection, Choice

OFFERED = 4  # plans of a repeated block that a file offers beside those in use


def hierarchical(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Choose among plans of the blocks.

    Source:
        J. Gusak et al., "HiRemate: Hierarchical approach for efficient re-materialization of neural networks", ICML
        2025.
    From the paper:
        Plans of a block are computed once for all equal blocks, and an integer program chooses one plan per instance.
    Differences:
        One level of blocks, because most models repeat one block. Prices of retained bytes replace the paper's grid of
        budgets, because they reach every useful plan with fewer solves. The program counts bytes beside the blocks as
        the simulator does, and orders equal instances, which removes symmetry.
    """
    selection = block_selection(instance, request.effort, context.deadline)

    outcome = yield from feedback(
        request, context, lambda budget: selection.ask(context.deadline, budget, request.effort, gap=TIGHT)
    )
    if outcome.best is None:
        least = selection.least()
        candidate = yield Proposal(least.recomputes)
        if candidate.peak <= request.budget:
            yield from _measured(selection, request, context, least)


def _measured(selection: BlockSelection, request: Request, context: Context, least: Answer[Choice]) -> Proposals[None]:
    """Choose with bytes beside the blocks that are those of the schedule that retains least, and then at least those
    of the schedules that were chosen.

    Without recomputation other operations are the worst of a block, which matters where the budget is near the floor.
    """
    base, _ = selection.measured(least.about)
    for _ in range(request.effort.rounds):
        answer = selection.ask(context.deadline, request.budget, request.effort, gap=TIGHT, base=base)
        if answer is None or context.deadline.stopped():
            return
        candidate = yield Proposal(answer.recomputes)
        if candidate.peak <= request.budget:
            return
        beside, _ = selection.measured(answer.about)
        base = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(base, beside, strict=True)]


def block_selection(instance: StepInstance, effort: Effort, deadline: Deadline) -> BlockSelection:
    """Return the plans of an instance's blocks, cached for each effort. They are not cached if the deadline ended
    their computation."""
    key = ("block selection", effort)
    if key in instance.kept:
        return instance.kept[key]
    selection = BlockSelection(instance.problem, instance.leaves, deadline, effort, judge=instance.judge)
    if not deadline.stopped():  # else its frontiers may lack plans
        instance.kept[key] = selection
        instance.kept[MENU, effort] = tuple(selection.menu(OFFERED))
    return selection


HIERARCHICAL = Strategy(
    "hierarchical",
    "integer program: plans of every distinct block, and a choice of one per instance",
    hierarchical,
    reference="J. Gusak et al., HiRemate, ICML 2025",
    solver=SOLVER,
    needs=frozenset({"backward", "hierarchy"}),
)
