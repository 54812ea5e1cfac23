"""HiRemate: a step of any size as a tree of small parts, planned from the leaves to the root by an integer program per
node.

J. Gusak et al., "HiRemate: Hierarchical approach for efficient re-materialization of neural networks", ICML 2025. The
tree is `tree`, what a plan of a part means to the node above it `options`, the program of a node `level_model` (their
H-ILP). A level may have a different solver (`Solvers`): it receives the step of a node, and what the node's parts
offer, and returns plans. Differences to the paper: the leaves are solved by the retention model (theirs: Checkmate's,
as Rockmate's), equal nodes are solved once, prices of retained bytes take the place of a grid of budgets, the simulator
corrects the root, and in a tree of more than two levels a choice of one plan for each leaf (`block_selection`) is
tried, too: a node in between offers only a few of all the combinations of plans below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec

from remate_runtime.flat_step import FlatRecompute

from ...errors import NotApplicableError
from ...partition.canonical import exports, form, readers_of, storages
from ...partition.hierarchy import BlockSpan
from ...partition.leaf_graph import LeafGraph, leaf_graph
from ..base import Candidate, Context, Proposal, Proposals, Request, Strategy
from ..blocks.block_frontier import block_frontier, trade_off, worth_having
from ..blocks.block_plan import BlockPlan, simulated_plan
from ..blocks.block_selection import BlockSelection
from ..deadline import Deadline
from ..effort import Effort, shared_effort
from ..feedback import Answer, feedback
from ..instance import StepInstance
from ..local.polish import polish
from ..milp.checkmate import checkmate, checkmate_fits
from ..milp.highs import SOLVER
from ..milp.retention import TIGHT
from ..pool import better
from ..problem import Problem
from .level_model import LevelModel
from .options import LevelPart, part
from .tree import LARGEST, Node, tree

LIMITS = (1.0, 0.6, 0.3)  # on the own peak of a node between leaf and root, as shares of its peak without recomputation
FEWER = 4  # part of the solves that a leaf gets for each limit
SHARED = 10  # solves of a node between leaf and root that together may take as long as one solve of the root
LEAST = 0.01  # how near to the least peak of the root is near enough, as a share of it

Frontier = Callable[[LeafGraph, Collection[int], Sequence[LevelPart], Deadline, Effort], list[BlockPlan]]


class Solvers(msgspec.Struct, frozen=True):
    """How a leaf, and a node between the leaves and the root, are planned: the node's step, its operations that may not
    run again, and its parts with what they offer -> plans that are worth having, with the plan without
    recomputation."""

    leaf: Frontier
    inner: Frontier


def retained(
    leaf: LeafGraph, once: Collection[int], parts: Sequence[LevelPart], deadline: Deadline, effort: Effort
) -> list[BlockPlan]:
    """A leaf, by the retention model, and running all of it again."""
    plans = block_frontier(leaf, deadline, effort, once)
    return [*plans, *whole_again(leaf, once)]


def levelled(
    leaf: LeafGraph, once: Collection[int], parts: Sequence[LevelPart], deadline: Deadline, effort: Effort
) -> list[BlockPlan]:
    """A node by the integer program over its parts, under several limits on its own peak."""
    keep = simulated_plan(leaf, ())
    problem = Problem(leaf.graph, once)
    model, each = LevelModel(problem, parts), shared_effort(effort, SHARED)
    plans = {keep.recomputes: keep}
    for limit in LIMITS:
        bytes_ = limit * model.baseline

        def solve(price: float, bytes_: float = bytes_) -> BlockPlan | None:
            result = model.solve(deadline, bytes_, each, price=price, gap=TIGHT, stage="level")
            return None if result.x is None else simulated_plan(leaf, tuple(model.recomputes(result)))

        for plan in trade_off(solve, max(2, effort.prices // FEWER), deadline):
            plans.setdefault(plan.recomputes, plan)
    for recomputes in smaller(model, deadline, each):
        plans.setdefault(recomputes, simulated_plan(leaf, recomputes))
    return [*worth_having(plans.values(), keep), *whole_again(leaf, once)]


SOLVERS = Solvers(retained, levelled)


def whole_again(leaf: LeafGraph, once: Collection[int]) -> list[BlockPlan]:
    """Everything that backward reads is computed again at its beginning, where that is allowed."""
    problem, backward_start = Problem(leaf.graph, once), leaf.graph.backward_start
    operations = [f for f in problem.forward if any(s not in problem.pinned for s in problem.writes[f])]
    if backward_start == len(leaf.graph.operations) or not operations or any(f in problem.once for f in operations):
        return []
    return [simulated_plan(leaf, tuple(FlatRecompute(f, backward_start) for f in operations))]


class Levels:
    """The tree of a step with the plans of all its nodes but the root, computed once. deadline: ends it early; then
    some nodes have no plan but that without recomputation."""

    def __init__(self, instance: StepInstance, deadline: Deadline, effort: Effort, solvers: Solvers = SOLVERS) -> None:
        self.instance, self.deadline, self.effort, self.solvers = instance, deadline, effort, solvers
        self.readers = readers_of(instance.graph)
        self.tree = tree(instance)
        self.known: dict[Any, list[BlockPlan]] = {}
        if not self.tree.parts:
            raise NotApplicableError(
                "the strategy 'hiremate' needs a step of several parts: this one is a single one\n"
                "  hint: ask for another one, or for auto"
            )
        self.root = LevelModel(instance.problem, self._parts(self.tree, instance.problem))
        self.leaves: BlockSelection | None = None
        if self.tree.levels() > 2 and not deadline.stopped():
            spans = [leaf.span for leaf in _leaves(self.tree)]
            self.leaves = BlockSelection(
                instance.problem, spans, deadline, effort, lambda span: self._plans(Node(span))
            )

    def _parts(self, node: Node, problem: Problem) -> list[LevelPart]:
        """problem: of the node's operations alone."""
        offered = [(_within(child.span, node.span), self._plans(child)) for child in node.parts]
        return [part(problem, span, plans) for span, plans in offered]

    def _plans(self, node: Node) -> list[BlockPlan]:
        graph, span = self.instance.graph, node.span
        shape = form(graph, span)
        begin, end = span.forward
        once = frozenset(f - begin for f in self.instance.once if begin <= f < end)
        key = (shape.key, exports(graph, span, self.readers), storages(graph, shape), once, len(node.parts))
        if key not in self.known:
            leaf = leaf_graph(graph, span, self.readers)
            if self.deadline.stopped():
                return [simulated_plan(leaf, ())]
            parts = self._parts(node, Problem(leaf.graph, once)) if node.parts else []
            solver = self.solvers.inner if node.parts else self.solvers.leaf
            self.known[key] = solver(leaf, once, parts, self.deadline, self.effort)
        return self.known[key]


def _leaves(node: Node) -> Iterator[Node]:
    for child in node.parts:
        yield from _leaves(child)
    if not node.parts:
        yield node


def _within(span: BlockSpan, node: BlockSpan) -> BlockSpan:
    """A part's ranges over the operations of its node."""
    forward = node.forward[0]
    backward = node.backward[0] - (node.forward[1] - forward)
    return msgspec.structs.replace(
        span,
        forward=(span.forward[0] - forward, span.forward[1] - forward),
        backward=(span.backward[0] - backward, span.backward[1] - backward),
    )


def levels(instance: StepInstance, effort: Effort, deadline: Deadline) -> Levels:
    """The levels of an instance, computed once for each effort; once more if the deadline cut that short."""
    key = ("levels", effort)
    if key in instance.kept:
        return instance.kept[key]
    computed = Levels(instance, deadline, effort)
    if not deadline.stopped():
        instance.kept[key] = computed
    return computed


def hiremate(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """The root's program under the budget, corrected by the simulator; the best result is polished. A step that is no
    larger than a leaf is solved as one, as in the paper by Checkmate's program, if it is small enough for that, too."""
    if len(instance.problem.forward) <= LARGEST and checkmate_fits(instance, request):
        yield from checkmate(instance, request, context)
    planned = levels(instance, request.effort, context.deadline)
    root, leaves, deadline = planned.root, planned.leaves, context.deadline

    def ask(budget: float) -> Answer[None] | None:
        result = root.solve(deadline, budget, request.effort, gap=TIGHT, stage="root")
        return None if result.x is None else Answer(tuple(root.recomputes(result)), budget, None)

    best = (yield from feedback(request, context, ask)).best
    if leaves is not None:
        chosen = leaves
        heard = yield from feedback(
            request, context, lambda budget: chosen.ask(deadline, budget, request.effort, gap=TIGHT)
        )
        best = better(best, heard.best)
    if best is None:
        best = yield from _least(root, request, context)
    if best is not None:
        yield from polish(instance.problem, best, request.budget, context.deadline)


def smaller(model: LevelModel, deadline: Deadline, effort: Effort) -> Iterator[tuple[FlatRecompute, ...]]:
    """What the program of a node answers nearer and nearer to the least limit under which it has a solution."""
    low, high = 0.0, float(model.baseline)
    while high - low > LEAST * high and not deadline.stopped():
        middle = (low + high) / 2
        result = model.solve(deadline, middle, effort, gap=TIGHT, stage="least")
        if result.x is None:
            low = middle
        else:
            high = middle
            yield tuple(model.recomputes(result))


def _least(root: LevelModel, request: Request, context: Context) -> Proposals[Any]:
    """The schedule of least peak. Returns the best that fits, if any."""
    best: Candidate | None = None
    for recomputes in smaller(root, context.deadline, request.effort):
        candidate = yield Proposal(recomputes)
        if candidate.peak <= request.budget and (best is None or candidate.time < best.time):
            best = candidate
    return best


HIREMATE = Strategy(
    "hiremate",
    "integer programs over a tree of parts: plans of each, and which parts run again when",
    hiremate,
    reference="J. Gusak et al., HiRemate, ICML 2025",
    solver=SOLVER,
    needs=frozenset({"backward"}),
)
