"""Solvers of the nodes of a tree of parts: those of HiRemate, or any strategy that the user names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import FlatRecompute

from ...errors import NotApplicableError
from ...partition.leaf_graph import LeafGraph
from ..base import NO_SOLVER, Context, Request, Strategy
from ..blocks.block_frontier import block_frontier, trade_off, worth_having
from ..blocks.block_plan import BlockPlan, simulated_plan
from ..deadline import Deadline
from ..effort import Effort, shared_effort
from ..instance import StepInstance
from ..milp.highs import SOLVER
from ..milp.retention import TIGHT
from ..needs import lacking
from ..problem import Problem
from ..registry import strategy
from ..solve import candidates
from ..solver_choice import DEFAULT, Solvers
from .level_model import LevelModel
from .options import LevelPart

LIMITS = (
    1.0,
    0.6,
    0.3,
)  # limits on the peak of a node between leaf and root, as shares of its peak without recomputation
GRID = (0.7, 0.4, 0.15, 0.0)  # budgets of a node that a strategy plans: 0 is its floor, 1 its peak
ROUNDS = 2  # rounds of feedback between a model and the simulator for each of these budgets
FEWER = 4  # an inner node gets this fraction of a leaf's solves
SHARED = 10  # number of solves of an inner node that together may take as long as one solve of the root
LEAST = 0.01  # accepted distance to the least peak of the root, as a share of it


class Offer(msgspec.Struct, frozen=True):
    """The plans that a node offers to the node above.

    Attributes:
        plans: Useful plans, with the plan without recomputation.
        solver: The solver that computed them, as text.
    """

    plans: list[BlockPlan]
    solver: str


Frontier = Callable[[LeafGraph, Collection[int], Sequence[LevelPart], Deadline, Effort], Offer]


class NodeSolvers(msgspec.Struct, frozen=True):
    """How nodes are planned.

    A solver maps the node's step, its operations that may not run again, and its parts to an offer.

    Attributes:
        leaf: Solves leaves.
        inner: Solves nodes between the leaves and the root.
    """

    leaf: Frontier
    inner: Frontier


def node_solvers(solvers: Solvers) -> NodeSolvers:
    """Return the solvers that the user chose."""
    leaf = retained(solvers) if solvers.leaf == DEFAULT.leaf else by_strategy(solvers.leaf, solvers, retained(solvers))
    inner = levelled(solvers)
    return NodeSolvers(leaf, inner if solvers.inner == DEFAULT.inner else by_strategy(solvers.inner, solvers, inner))


def retained(solvers: Solvers) -> Frontier:
    """Return a solver of leaves: the retention model, and the plan that runs everything again."""

    def solve(
        leaf: LeafGraph, once: Collection[int], parts: Sequence[LevelPart], deadline: Deadline, effort: Effort
    ) -> Offer:
        plans = block_frontier(leaf, deadline, effort, once, solvers.milp)
        return Offer([*plans, *whole_again(leaf, once)], f"retention model, {solvers.milp_text(SOLVER)}")

    return solve


def levelled(solvers: Solvers) -> Frontier:
    """Return a solver of inner nodes: the integer program over their parts, under several limits on the node's peak."""

    def solve(
        leaf: LeafGraph, once: Collection[int], parts: Sequence[LevelPart], deadline: Deadline, effort: Effort
    ) -> Offer:
        keep = simulated_plan(leaf, ())
        model = LevelModel(Problem(leaf.graph, once), parts, solvers.milp)
        each, plans = shared_effort(effort, SHARED), {keep.recomputes: keep}
        for limit in LIMITS:

            def priced(price: float, bytes_: float = limit * model.baseline) -> BlockPlan | None:
                result = model.solve(deadline, bytes_, each, price=price, gap=TIGHT, stage="level")
                return None if result.x is None else simulated_plan(leaf, tuple(model.recomputes(result)))

            for plan in trade_off(priced, max(2, effort.prices // FEWER), deadline):
                plans.setdefault(plan.recomputes, plan)
        for recomputes in smaller(model, deadline, each):
            plans.setdefault(recomputes, simulated_plan(leaf, recomputes))
        offered = [*worth_having(plans.values(), keep), *whole_again(leaf, once)]
        return Offer(offered, f"level program, {solvers.milp_text(SOLVER)}")

    return solve


def by_strategy(name: str, solvers: Solvers, otherwise: Frontier) -> Frontier:
    """Return a solver that runs any strategy alone, under budgets between the node's floor and its peak: a grid, as in
    the paper.

    Args:
        name: The strategy.
        solvers: Solvers that the user chose.
        otherwise: Solves nodes to which the strategy does not apply.
    """
    chosen = strategy(name)

    def solve(
        leaf: LeafGraph, once: Collection[int], parts: Sequence[LevelPart], deadline: Deadline, effort: Effort
    ) -> Offer:
        keep, about = simulated_plan(leaf, ()), StepInstance(leaf.graph, (), once)
        plans, low, high = {keep.recomputes: keep}, about.floor, about.baseline.peak
        try:
            if lacking(about, chosen.needs) is not None:
                raise NotApplicableError("")
            each = replace(shared_effort(effort, len(GRID)), nodes=effort.nodes, rounds=ROUNDS)
            for share in GRID:
                request = Request(low + int(share * (high - low)), 0.0, each, solvers)
                context = Context(deadline, about.baseline.time)
                for candidate in candidates(chosen, about, request, context):
                    if candidate.peak <= high and candidate.order is None:
                        plans.setdefault(candidate.recomputes, simulated_plan(leaf, candidate.recomputes))
        except NotApplicableError:
            other = otherwise(leaf, once, parts, deadline, effort)
            return Offer(other.plans, f"{other.solver} ({name} does not apply)")
        label = name if chosen.solver == NO_SOLVER else f"{name}, {_text(chosen, solvers)}"
        return Offer([*worth_having(plans.values(), keep), *whole_again(leaf, once)], label)

    return solve


def _text(chosen: Strategy, solvers: Solvers) -> str:
    return solvers.milp_text(chosen.solver) if "milp" in chosen.options else chosen.solver


def whole_again(leaf: LeafGraph, once: Collection[int]) -> list[BlockPlan]:
    """Return the plan in which everything that backward reads is computed again at its beginning, if that is
    allowed."""
    problem, backward_start = Problem(leaf.graph, once), leaf.graph.backward_start
    operations = [f for f in problem.forward if any(s not in problem.pinned for s in problem.writes[f])]
    if backward_start == len(leaf.graph.operations) or not operations or any(f in problem.once for f in operations):
        return []
    return [simulated_plan(leaf, tuple(FlatRecompute(f, backward_start) for f in operations))]


def smaller(model: LevelModel, deadline: Deadline, effort: Effort) -> Iterator[tuple[FlatRecompute, ...]]:
    """Yield solutions of a node's program under limits that approach the least feasible one."""
    low, high = 0.0, float(model.baseline)
    while high - low > LEAST * high and not deadline.stopped():
        middle = (low + high) / 2
        result = model.solve(deadline, middle, effort, gap=TIGHT, stage="least")
        if result.x is None:
            low = middle
        else:
            high = middle
            yield tuple(model.recomputes(result))
