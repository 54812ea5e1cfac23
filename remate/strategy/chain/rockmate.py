"""Rockmate: Rotor over the blocks of the step, each of which may also run by one of its own plans."""

from __future__ import annotations

from ..base import Context, Proposal, Proposals, Request, Strategy
from ..blocks.block_plan import BlockPlan
from ..blocks.hierarchical import block_selection
from ..instance import Instance
from ..local.polish import polish
from ..local.squeeze import squeeze
from ..milp.highs import SOLVER
from .chain import chain_of
from .rotor_step import programmed

NEAR = 2  # schedules slightly over the budget that are squeezed into it


def rockmate(instance: Instance, request: Request, context: Context) -> Proposals[None]:
    """Blocks that run again as a whole, beside their plans; what does not quite fit is a start for squeezing."""
    problem, budget, deadline = instance.problem, request.budget, context.deadline
    seen = yield from programmed(instance, request, context, _plans(instance, request, context))
    over = {(c.time, c.peak): c for c in seen if c.peak > budget}
    for _, candidate in sorted(over.items())[:NEAR]:
        found = yield Proposal(squeeze(problem, candidate.reruns, budget, request.effort, deadline))
        seen = (*seen, found)
    best = min((c for c in seen if c.peak <= budget), key=lambda c: (c.time, c.peak), default=None)
    if best is not None:
        yield from polish(problem, best, budget, deadline)


def _plans(instance: Instance, request: Request, context: Context) -> dict[int, list[BlockPlan]]:
    """Plans of the stages of the chain: those of the leaves, where a stage is one."""
    selection = block_selection(instance, request.effort, context.deadline)
    leaf = {part.forward: p for p, part in enumerate(instance.leaves)}
    stages = enumerate(chain_of(instance).stages)
    return {k: selection.plans(leaf[stage.forward]) for k, stage in stages if stage.forward in leaf}


ROCKMATE = Strategy(
    "rockmate",
    "Rotor's dynamic programme over blocks that choose among plans of their own",
    rockmate,
    reference="X. Zhao et al., Rockmate, ICML 2023",
    solver=SOLVER,
    needs=frozenset({"backward", "hierarchy", "chain"}),
)
