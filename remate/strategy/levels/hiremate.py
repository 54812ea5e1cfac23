"""HiRemate: a step of any size as a tree of small parts, planned from the leaves to the root by an integer program per
node.

J. Gusak et al., "HiRemate: Hierarchical approach for efficient re-materialization of neural networks", ICML 2025. The
tree is `tree` or `h_partition`. `options` describes plans of a part for the node above it, `level_model` is the program
of a node (their H-ILP), and `node_solvers` plans a node. As in the paper, a level may have a different solver, which
the user names: `hiremate[leaf=checkmate,inner=rotor,milp=scip,tree=graph]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.format import SolvedPart

from ...errors import NotApplicableError
from ...partition.canonical import exports, form, readers_of, storages
from ...partition.hierarchy import BlockSpan
from ...partition.leaf_graph import leaf_graph
from ..base import BASELINE, PARTS, Candidate, Context, Proposal, Proposals, Request, Strategy
from ..blocks.block_plan import simulated_plan
from ..blocks.block_selection import BlockSelection
from ..deadline import Deadline
from ..effort import Effort
from ..feedback import Answer, feedback
from ..instance import StepInstance
from ..local.polish import polish
from ..milp.checkmate import checkmate, checkmate_fits
from ..milp.highs import SOLVER
from ..milp.retention import TIGHT
from ..pool import better
from ..problem import Problem
from ..solver_choice import DEFAULT, Solvers
from .h_partition import h_partition
from .level_model import LevelModel
from .node_solvers import Offer, node_solvers, smaller
from .options import LevelPart, part
from .tree import LARGEST, Node, tree


class Levels:
    """The tree of a step with the plans of all its nodes except the root, computed once.

    If the deadline ends the computation, some nodes have only the plan without recomputation.
    """

    def __init__(self, instance: StepInstance, deadline: Deadline, effort: Effort, solvers: Solvers = DEFAULT) -> None:
        self.instance, self.deadline, self.effort, self.solvers = instance, deadline, effort, solvers
        self.by = node_solvers(solvers)
        self.readers = readers_of(instance.graph)
        self.tree = tree(instance) if solvers.tree == "modules" else h_partition(instance)
        self.known: dict[Any, Offer] = {}
        if not self.tree.parts:
            raise NotApplicableError(
                "the strategy 'hiremate' needs a step of several parts, and this step is a single part\n"
                "  hint: use another strategy, or auto"
            )
        self.root = LevelModel(instance.problem, self._parts(self.tree, instance.problem), solvers.milp)
        self.leaves: BlockSelection | None = None
        if self.tree.levels() > 2 and not deadline.stopped():
            spans = [leaf.span for leaf in _leaves(self.tree)]
            self.leaves = BlockSelection(
                instance.problem, spans, deadline, effort, lambda span: self.offer(Node(span)).plans, solvers.milp
            )

    def _parts(self, node: Node, problem: Problem) -> list[LevelPart]:
        """Return the parts of a node. problem: the node's operations alone."""
        offered = [(_within(child.span, node.span), self.offer(child).plans) for child in node.parts]
        return [part(problem, span, plans) for span, plans in offered]

    def offer(self, node: Node) -> Offer:
        """Return the plans of a node, computed once for all equal nodes."""
        graph, span = self.instance.graph, node.span
        shape = form(graph, span)
        begin, end = span.forward
        once = frozenset(f - begin for f in self.instance.once if begin <= f < end)
        key = (shape.key, exports(graph, span, self.readers), storages(graph, shape), once, len(node.parts))
        if key not in self.known:
            leaf = leaf_graph(graph, span, self.readers)
            if self.deadline.stopped():
                return Offer([simulated_plan(leaf, ())], "none: the time was up")
            parts = self._parts(node, Problem(leaf.graph, once)) if node.parts else []
            begun, solver = time.process_time(), self.by.inner if node.parts else self.by.leaf
            self.known[key] = solutions = solver(leaf, once, parts, self.deadline, self.effort)
            spent = time.process_time() - begun
            self.deadline.say(f"part {span.id}: {len(solutions.plans)} plans by {solutions.solver}, {spent:.1f} s")
        return self.known[key]

    def solved(self, recomputes: Sequence[FlatRecompute]) -> tuple[SolvedPart, ...]:
        """Return the tree with the solver of each node and the time of these recomputations in it.

        Equal neighbours are one entry.
        """
        program = f"level program, {self.solvers.milp_text(SOLVER)}"
        entries = [self._entry(self.tree, 0, "", Offer([], program), recomputes)]
        self._below(self.tree, 1, recomputes, entries)
        return tuple(entries)

    def _below(self, node: Node, level: int, recomputes: Sequence[FlatRecompute], entries: list[SolvedPart]) -> None:
        for row in _rows(node.parts, lambda child: id(self.offer(child))):
            begin, end = row[0].span.forward[0], row[-1].span.forward[1]
            whole = Node(msgspec.structs.replace(row[0].span, forward=(begin, end)), row[0].parts)
            entry = self._entry(whole, level, _row_name(row), self.offer(row[0]), recomputes)
            size = sum(not self.instance.graph.operations[i].view for i in range(*row[0].span.forward))
            entries.append(msgspec.structs.replace(entry, count=len(row), operations=size))
            self._below(row[0], level + 1, recomputes, entries)

    def _entry(
        self, node: Node, level: int, name: str, offer: Offer, recomputes: Sequence[FlatRecompute]
    ) -> SolvedPart:
        problem, (begin, end) = self.instance.problem, node.span.forward
        spent = sum(problem.time[r.op] for r in recomputes if begin <= r.op < end)
        operations = sum(begin <= i < end for i in problem.forward)
        return SolvedPart(name, level, 1, operations, len(offer.plans), offer.solver, spent)


def _rows(nodes: Sequence[Node], key: Callable[[Node], int]) -> Iterator[list[Node]]:
    """Yield runs of neighbours that have the same key."""
    for _, row in groupby(nodes, key):
        yield list(row)


def _row_name(row: Sequence[Node]) -> str:
    """Return the name of a run of neighbours: its first and its last module or segment."""
    first, last = row[0].span.id, row[-1]
    while last.parts and last.parts[0].span.id == last.span.id:  # this node has no name of its own
        last = last.parts[-1]
    return first if first == last.span.id else f"{first} to {last.span.id}"


def _leaves(node: Node) -> Iterator[Node]:
    for child in node.parts:
        yield from _leaves(child)
    if not node.parts:
        yield node


def _within(span: BlockSpan, node: BlockSpan) -> BlockSpan:
    """Return a part's ranges over the operations of its node."""
    forward = node.forward[0]
    backward = node.backward[0] - (node.forward[1] - forward)
    return msgspec.structs.replace(
        span,
        forward=(span.forward[0] - forward, span.forward[1] - forward),
        backward=(span.backward[0] - backward, span.backward[1] - backward),
    )


def levels(instance: StepInstance, effort: Effort, deadline: Deadline, solvers: Solvers = DEFAULT) -> Levels:
    """Return the levels of an instance, cached for each effort and choice of solvers.

    They are not cached if the deadline ended their computation.
    """
    key = ("levels", effort, solvers)
    if key in instance.kept:
        return instance.kept[key]
    computed = Levels(instance, deadline, effort, solvers)
    if not deadline.stopped():
        instance.kept[key] = computed
    return computed


def hiremate(instance: StepInstance, request: Request, context: Context) -> Proposals[None]:
    """Solve the root's program under the budget, corrected by the simulator, and polish the best result.

    A step that is no larger than a leaf is also solved whole by Checkmate's program, as in the paper, if it is small
    enough. If another strategy already has a schedule, Checkmate's program is skipped, and nothing is proposed if the
    relaxed root program proves that the parts cost more than the bound.

    Source:
        J. Gusak et al., "HiRemate: Hierarchical approach for efficient re-materialization of neural networks", ICML
        2025.
    From the paper:
        A tree of small parts; plans of the leaves; an integer program per node (H-ILP) up to the root; a choice of
        solver per level; the H-Partition (`tree=graph`); equal parts are solved once.
    Differences:
        The retention model solves leaves unless another solver is named, because Checkmate's program takes longer.
        Prices of retained bytes replace a grid of budgets in these two models. The tree has the modules of the model by
        default, because these repeat. The simulator corrects the root. In a tree of more than two levels, one plan per
        leaf is also chosen directly, because an inner node offers only a few combinations.
    """
    rival = context.best is not None and context.best.strategy.split("+")[0] not in (HIREMATE.name, BASELINE)
    leaf = request.solvers.leaf in (DEFAULT.leaf, "checkmate") and len(instance.problem.forward) <= LARGEST
    if leaf and not rival and checkmate_fits(instance, request):
        yield from checkmate(instance, request, context)
    planned = levels(instance, request.effort, context.deadline, request.solvers)
    instance.kept[PARTS, "hiremate", request.effort, request.solvers] = planned.solved
    root, leaves, deadline = planned.root, planned.leaves, context.deadline
    if rival and root.least_time(deadline, request.budget) > context.bound:
        return

    def ask(budget: float) -> Answer[None] | None:
        result = root.solve(deadline, budget, request.effort, gap=TIGHT, stage="root")
        return None if result.x is None else Answer(tuple(root.recomputes(result)), budget, None)

    best = (yield from feedback(request, context, ask)).best
    if leaves is not None:
        chosen = leaves
        outcome = yield from feedback(
            request, context, lambda budget: chosen.ask(deadline, budget, request.effort, gap=TIGHT)
        )
        best = better(best, outcome.best)
    if best is None:
        best = yield from _least(root, request, context)
    if best is not None:
        yield from polish(instance.problem, best, request.budget, context.deadline)


def _least(root: LevelModel, request: Request, context: Context) -> Proposals[Any]:
    """Propose schedules of smaller and smaller peak. Returns the fastest that fits, if any."""
    best: Candidate | None = None
    for recomputes in smaller(root, context.deadline, request.effort):
        candidate = yield Proposal(recomputes)
        if candidate.peak <= request.budget and (best is None or candidate.time < best.time):
            best = candidate
    return best


HIREMATE = Strategy(
    "hiremate",
    "integer programs over a tree of parts: a plan of each part, and which parts run again when",
    hiremate,
    reference="J. Gusak et al., HiRemate, ICML 2025",
    solver=SOLVER,
    needs=frozenset({"backward"}),
    options=frozenset({"leaf", "inner", "milp", "tree"}),
)
