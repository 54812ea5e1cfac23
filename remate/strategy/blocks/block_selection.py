"""The choice of one plan for every block instance, as an integer program.

    minimise  sum of time[o] * x[p, o]                                          over instances p and plans o
    single    sum of x[p, o] = 1                                                 for every instance p
    forward   base[p] + sum over q < p of retained[q] + forward_peak[p] <= budget      for every instance p
    backward  base'[p] + sum over q < p of retained[q] + backward_peak[p] <= budget    for every instance p
    order     retained never falls from one instance of a template to the next one

If a part of a model is called several times (`Graph.calls`), each call also has in memory what the instances retain for
every other call.

Backward runs the instances in reverse, so bytes that a later instance retains are freed first. Therefore, of equal
instances, the later ones retain more. This row also removes a symmetry that would cost the solver most of its time. The
bases are bytes beside those of the blocks, which the simulator counts in the step without recomputation. (H-Rockmate,
Gusak et al., ICML 2025, chooses among plans of blocks in the same way, without bases or order.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import Execution, link, simulate
from remate_runtime.support.gc_pause import gc_paused

from ...partition.canonical import exports, form, readers_of, storages
from ...partition.hierarchy import BlockSpan
from ...partition.leaf_graph import leaf_graph
from ..deadline import Deadline
from ..effort import Effort
from ..feedback import Answer
from ..milp.formulation import PARTS, linear
from ..milp.highs import SolveOptions
from ..milp.solver_model import HIGHS, solver_model
from ..problem import Problem
from ..pyomo_api import Model, pyo
from .block_frontier import block_frontier
from .block_plan import BlockPlan

Choice = tuple[int, ...]  # plans by instance
Bases = Sequence[tuple[int, int]]  # bytes by instance, in forward and in backward


class BlockSelection:
    """Frontiers of all distinct blocks, and the choice among them for any budget.

    Args:
        problem: The step.
        leaves: Its blocks, in forward order.
        deadline: Ends the computation of frontiers early.
        effort: How hard to search.
        plans: Returns the known plans of a leaf; by default they are computed.
        solver: Name of the solver of integer programs.
        judge: The step that schedules are judged on, if it differs from the problem's.
    """

    def __init__(
        self,
        problem: Problem,
        leaves: Sequence[BlockSpan],
        deadline: Deadline,
        effort: Effort,
        plans: Callable[[BlockSpan], list[BlockPlan]] | None = None,
        solver: str = HIGHS,
        judge: Graph | None = None,
    ) -> None:
        self.problem, self.leaves = problem, leaves
        graph, readers = problem.graph, readers_of(problem.graph)
        self.template: list[int] = []  # by instance
        self.frontiers: list[list[BlockPlan]] = []  # by template
        self.operations: list[tuple[int, ...]] = []  # by instance
        known: dict[Any, int] = {}
        for part in leaves:
            shape = form(graph, part)
            key = (shape.key, exports(graph, part, readers), storages(graph, shape))
            if key not in known:
                known[key] = len(self.frontiers)
                known_plans = (
                    block_frontier(leaf_graph(graph, part, readers), deadline, effort) if plans is None else plans(part)
                )
                self.frontiers.append(known_plans)
            self.template.append(known[key])
            self.operations.append((*range(*part.forward), *range(*part.backward)))
        self.judge = graph if judge is None else judge
        self._bases()
        self.unit = max(self.baseline, 1) / PARTS
        self.percent = max(problem.baseline_time, 1) / 100.0
        with gc_paused():
            self.model: Any = self._build()
            self.engine = solver_model(self.model, solver)

    def plans(self, p: int) -> list[BlockPlan]:
        """Return the plans of instance p."""
        return self.frontiers[self.template[p]]

    def _bases(self) -> None:
        """Set the bytes beside those of the blocks at the worst moments of each instance's forward and backward."""
        keep = [next(o for o, plan in enumerate(self.plans(p)) if not plan.recomputes) for p in range(len(self.leaves))]
        self.base, self.baseline = self.measured(keep)
        retained = sum(self.plans(p)[o].retained for p, o in enumerate(keep))
        self.kept = self.problem.held.kept - retained if self.judge.calls > 1 else 0  # beside what the blocks retain

    def measured(self, chosen: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
        """Return the bytes beside those of the blocks under a choice of plans, by instance, and the peak."""
        linked = link(self.judge, self._flat(chosen))
        timeline = simulate(linked)
        owner = {i: p for p, operations in enumerate(self.operations) for i in operations}
        worst = [[0, 0] for _ in self.leaves]
        for at, (event, held) in enumerate(zip(linked.events, timeline.during, strict=True)):
            if isinstance(event, Execution):
                part, backward = worst[owner[event.op]], at > linked.backward_start
                part[backward] = max(part[backward], held)
        base: list[tuple[int, int]] = []
        before = 0
        for p, (forward, backward) in enumerate(worst):
            plan = self.plans(p)[chosen[p]]
            base.append((forward - before - plan.forward_peak, backward - before - plan.backward_peak))
            before += plan.retained
        return base, timeline.peak

    def _build(self) -> Model:
        m: Any = pyo.ConcreteModel()
        count = len(self.leaves)
        pairs = [(p, o) for p in range(count) for o in range(len(self.plans(p)))]
        m.budget = pyo.Param(initialize=float(self.baseline), mutable=True)

        def beside_at_first(m: Any, p: int, b: int) -> int:
            return self.base[p][b]

        m.beside = pyo.Param(range(count), (0, 1), initialize=beside_at_first, mutable=True)
        m.x = pyo.Var(pairs, domain=pyo.Binary)
        m.before = pyo.Var(range(count + 1))  # retained by the instances before p

        def figures(p: int, which: str, scale: float = 1.0) -> tuple[list[Any], list[float]]:
            options = self.plans(p)
            return [m.x[p, o] for o in range(len(options))], [getattr(o, which) / self.unit * scale for o in options]

        others = self.problem.graph.calls - 1
        beside = [m.before[count]] if others else []

        def single(m: Any, p: int) -> Any:
            return linear(figures(p, "retained")[0]) == 1

        def chain(m: Any, p: int) -> Any:
            variables, sizes = figures(p, "retained")
            return linear([m.before[p + 1], m.before[p], *variables], [-1.0, 1.0, *sizes]) == 0

        def level(m: Any, p: int, backward: int) -> Any:
            variables, sizes = figures(p, ("forward_peak", "backward_peak")[backward])
            limit = (m.budget - m.beside[p, backward] - others * self.kept) / self.unit
            return linear([m.before[p], *variables, *beside], [1.0, *sizes, *[float(others)] * len(beside)]) <= limit

        def order(m: Any, p: int, q: int) -> Any:
            earlier, later = figures(p, "retained"), figures(q, "retained", -1.0)
            return linear([*earlier[0], *later[0]], [*earlier[1], *later[1]]) <= 0

        latest: dict[int, int] = {}
        neighbours: list[tuple[int, int]] = []
        for q, template in enumerate(self.template):
            if template in latest and len(self.frontiers[template]) > 1:
                neighbours.append((latest[template], q))
            latest[template] = q
        m.first = pyo.Constraint(expr=m.before[0] == 0)
        m.single = pyo.Constraint(range(count), rule=single)
        m.chain = pyo.Constraint(range(count), rule=chain)
        m.level = pyo.Constraint([(p, b) for p in range(count) for b in (0, 1)], rule=level)
        m.order = pyo.Constraint(neighbours, rule=order)
        extra = [self.plans(p)[o].time - min(plan.time for plan in self.plans(p)) for p, o in pairs]
        m.time = pyo.Objective(expr=linear(list(m.x.values()), [e / self.percent for e in extra]))
        return m

    def ask(
        self, deadline: Deadline, budget: float, effort: Effort, *, gap: float, base: Bases | None = None
    ) -> Answer[Choice] | None:
        """Return the program's choice for a budget.

        Args:
            deadline: Ends the solve early.
            budget: Bytes.
            effort: How hard to search.
            gap: Share of the step's time at which the solve stops.
            base: Bytes beside those of the blocks, by instance in forward and backward; by default `self.base`.
        """
        self.model.budget.set_value(budget)
        for p, beside in enumerate(self.base if base is None else base):
            for backward in (0, 1):
                self.model.beside[p, backward].set_value(beside[backward])
        self.engine.update(self.model.level.values())
        result = self.engine.solve(
            deadline,
            SolveOptions(stage="blocks", absolute_gap=100.0 * gap, nodes=effort.selection_nodes, work=effort.work),
        )
        if result.x is None:
            return None
        x = result.x
        chosen = tuple(
            max(range(len(self.plans(p))), key=lambda o, p=p: x[self.engine.column(self.model.x[p, o])])
            for p in range(len(self.leaves))
        )
        return Answer(tuple(self._flat(chosen)), budget, chosen)

    def least(self) -> Answer[Choice]:
        """Return recomputations in which every block uses the plan that retains least."""
        chosen = (0,) * len(self.leaves)
        return Answer(tuple(self._flat(chosen)), 0.0, chosen)

    def _flat(self, chosen: Sequence[int]) -> list[FlatRecompute]:
        flat = [r for p, o in enumerate(chosen) for r in self._mapped(p, self.plans(p)[o])]
        return sorted(flat, key=lambda r: r.before)  # stable: the plan's own order within a point

    def _mapped(self, p: int, plan: BlockPlan) -> list[FlatRecompute]:
        operations = self.operations[p]
        return [FlatRecompute(operations[r.op], operations[r.before]) for r in plan.recomputes]

    def menu(self, most: int) -> list[tuple[FlatRecompute, ...]]:
        """Return a few plans along the frontier of every template with several instances, over its first instance."""
        offers: list[tuple[FlatRecompute, ...]] = []
        for template, plans in enumerate(self.frontiers):
            if self.template.count(template) > 1:
                recompute = [plan for plan in plans if plan.recomputes]
                picked = {round(n * (len(recompute) - 1) / max(1, most - 1)) for n in range(min(most, len(recompute)))}
                first = self.template.index(template)
                offers += [tuple(self._mapped(first, recompute[n])) for n in sorted(picked)]
        return offers
