"""Rockmate: Rotor over the blocks of the step, each of which may also use its own plans."""

from __future__ import annotations

from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..blocks.block_plan import BlockPlan
from ..blocks.hierarchical import block_selection
from ..instance import StepInstance
from ..local.polish import polish
from ..local.squeeze import squeeze
from ..milp.highs import SOLVER
from .chain import chain_of
from .head import cut_heads
from .lean import lean_plans
from .rotor_step import programmed

NEAR = 2  # number of schedules slightly over the budget that are squeezed into it


def rockmate(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Run Rotor over blocks with plans of their own, squeeze schedules slightly over the budget, and polish the best.

    Source:
        X. Zhao, T. Le Hellard, L. Eyraud-Dubois, J. Gusak, O. Beaumont, "Rockmate: an efficient, fast, automatic and
        generic tool for re-materialization in PyTorch", ICML 2023.
    From the paper:
        Rotor's dynamic program in which each block may run by one of several plans that recompute inside its backward.
    Differences:
        The retention model plans blocks, not Checkmate, because it takes less time. Lean plans by greedy search are
        added for the smallest budgets. The last stage may be cut in two at the loss. Results are squeezed and polished.
    """
    problem, budget, deadline = instance.problem, request.budget, context.deadline
    plans, chain = _plans(instance, request, context), chain_of(instance)
    best: list[Candidate] = []
    for candidate_chain in (chain, *cut_heads(instance, budget)):
        fitting = {k: of for k, of in plans.items() if candidate_chain.stages[k : k + 1] == chain.stages[k : k + 1]}
        seen = yield from programmed(instance, request, context, [(candidate_chain, fitting)])
        over = {(c.time, c.peak): c for c in seen if c.peak > budget}
        for _, candidate in sorted(over.items())[:NEAR]:
            squeezed = yield Proposal(squeeze(problem, candidate.recomputes, budget, request.effort, deadline))
            seen = (*seen, squeezed)
        best += sorted((c for c in seen if c.peak <= budget), key=lambda c: (c.time, c.peak))[:1]
    for candidate in best:
        yield from polish(problem, candidate, budget, deadline)


def _plans(instance: StepInstance, request: Request, context: Context) -> dict[int, list[BlockPlan]]:
    """Return plans of the stages of the chain: those of the leaf if the stage is one, and lean ones."""
    selection, chain = block_selection(instance, request.effort, context.deadline), chain_of(instance)
    leaf = {part.forward: p for p, part in enumerate(instance.leaves)}
    plans: dict[int, list[BlockPlan]] = {}
    lean: dict[tuple[int, int], list[BlockPlan]] = {}  # by template and number of needed operations
    for k, stage in enumerate(chain.stages):
        if stage.forward in leaf:
            p = leaf[stage.forward]
            key = selection.template[p], len(stage.needs)
            if key not in lean:
                lean[key] = lean_plans(chain, k, request.effort, context.deadline)
            plans[k] = [*selection.plans(p), *lean[key]]
    return plans


ROCKMATE = Strategy(
    "rockmate",
    "Rotor's dynamic program over blocks that choose among plans of their own",
    rockmate,
    reference="X. Zhao et al., Rockmate, ICML 2023",
    solver=SOLVER,
    needs=frozenset({"backward", "hierarchy", "chain"}),
)
