"""HiRemate: the tree of a step, the program of a node against the simulator, and what levels give beyond blocks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remate.partition.hierarchy import BlockSpan
from remate.partition.leaf_graph import leaf_graph
from remate.partition.partitioning import partition
from remate.strategy import AUTO, QUICK, Context, Deadline, Request, Solvers, StepInstance, policy, solve, with_solvers
from remate.strategy.blocks.block_plan import simulated_plan
from remate.strategy.chain.chain import segment_blocks
from remate.strategy.levels import h_partition as h_partitions
from remate.strategy.levels import hiremate as module
from remate.strategy.levels import tree as trees
from remate.strategy.levels.h_partition import h_partition
from remate.strategy.levels.hiremate import Levels, hiremate
from remate.strategy.levels.level_model import LevelModel
from remate.strategy.levels.node_solvers import smaller
from remate.strategy.levels.tree import Node, tree
from remate.strategy.problem import Problem
from remate_runtime.flat_step import Graph
from remate_runtime.link import link, simulate

from .strategy_graphs import random_graph, transformer
from .synthetic import layers
from .test_online import chain


def leaves(node: Node) -> list[BlockSpan]:
    return [span for part in node.parts for span in leaves(part)] if node.parts else [node.span]


def nodes(node: Node) -> list[Node]:
    return [node, *(inner for part in node.parts for inner in nodes(part))]


@pytest.mark.parametrize("graph", [random_graph(3, 200), transformer(14), random_graph(4, 9)])
def test_a_tree_has_every_operation_once_in_small_parts(graph: Graph) -> None:
    root = tree(StepInstance(graph))
    spans = leaves(root)
    forward = [i for span in spans for i in range(*span.forward)]
    backward = [i for span in reversed(spans) for i in range(*span.backward)]
    assert [*forward, *backward] == list(range(len(graph.operations)))
    assert all(len(node.parts) <= trees.MOST for node in nodes(root))
    assert all(span.forward[1] - span.forward[0] <= 3 * trees.SHORT for span in spans)


def test_what_repeats_is_solved_once() -> None:
    step = partition(layers(16))
    about = Levels(StepInstance(step.captured.graph, step.parts), Deadline(), QUICK)
    assert about.tree.levels() > 2
    assert len(about.known) < (len(nodes(about.tree)) - 1) / 2


@pytest.mark.quick("11")
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_the_program_of_a_node_says_what_the_simulator_says(seed: int) -> None:
    """Of time exactly; of memory never much less than is held."""
    instance = StepInstance(random_graph(seed, 40))
    root = Levels(instance, Deadline(), QUICK).root
    for share in (0.95, 0.85, 0.75):
        budget = share * instance.baseline.peak
        result = root.solve(Deadline(), budget, QUICK)
        assert result.x is not None
        timeline = simulate(link(instance.graph, root.recomputes(result)))
        assert result.objective == pytest.approx(100 * (timeline.time / instance.baseline.time - 1), abs=1e-6)
        assert timeline.peak <= 1.15 * budget


@pytest.mark.quick("0.6")
@pytest.mark.parametrize("share", [0.8, 0.7, 0.65])
def test_levels_run_parts_again_where_a_choice_of_one_plan_each_cannot(share: float) -> None:
    graph = random_graph(9, 60)
    instance = StepInstance(graph, segment_blocks(StepInstance(graph).problem, 8))
    request = Request(int(share * instance.baseline.peak), effort=QUICK)
    ours, chosen = (solve(instance, request, policy(name)) for name in ("hiremate", "hierarchical"))
    assert ours.peak <= request.budget
    assert ours.time < chosen.time


@pytest.mark.slow
@pytest.mark.parametrize("budget", [160, 130])
def test_a_chain_is_run_as_by_the_optimal_programme_for_chains(budget: int) -> None:
    """36 layers of 10 bytes; without recomputation 380. Within the smaller budget several parts run again in one stage,
    one after another."""
    request = Request(budget, effort=QUICK)
    ours, rotor = (solve(StepInstance(chain(36)), request, policy(name)) for name in ("hiremate", "rotor"))
    assert ours.time <= rotor.time


@pytest.mark.slow
def test_several_levels_come_near_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST", 3)
    monkeypatch.setattr(trees, "SHORT", 8)
    instance = StepInstance(random_graph(5, 90))
    assert tree(instance).levels() > 2
    solution = solve(instance, Request(int(0.8 * instance.baseline.peak), effort=QUICK), policy("hiremate"))
    assert solution.gap <= 0.03
    blocks = leaves(tree(instance))
    chosen = solve(StepInstance(instance.graph, blocks), Request(solution.peak, effort=QUICK), policy("hierarchical"))
    assert solution.time <= chosen.time, "a choice of one plan for each leaf is among what it tries"
    assert (solution.strategy, solution.solver.split()[0]) == ("hiremate", "highs")


@pytest.mark.quick("leaf,inner")
@pytest.mark.parametrize(
    ("solvers", "said"),
    [
        (Solvers(leaf="greedy"), {"greedy", "level program, highs"}),
        (Solvers(leaf="checkmate", inner="rotor"), {"checkmate, highs", "rotor"}),
        (Solvers(milp="appsi_highs"), {"retention model, appsi_highs", "level program, appsi_highs"}),
        (
            Solvers(tree="graph", inner="flat", milp="appsi_highs"),
            {"retention model, appsi_highs", "flat, appsi_highs"},
        ),
    ],
    ids=lambda given: ",".join(given.changed) if isinstance(given, Solvers) else "",
)
def test_each_level_is_planned_by_the_solver_that_is_named(solvers: Solvers, said: set[str]) -> None:
    step = partition(layers(16))
    instance = StepInstance(step.captured.graph, step.parts)
    request = Request(int(0.8 * instance.baseline.peak), effort=QUICK)
    solution = solve(instance, request, policy(with_solvers("hiremate", solvers)))
    assert solution.peak <= request.budget
    used = {part.solver for part in solution.parts if part.level}
    assert all(any(solver.startswith(start) for solver in used) for start in said), used
    assert solution.solver.startswith("highs" if solvers.milp == "highs" else "appsi_highs through Pyomo")


@pytest.mark.slow
def test_leaves_that_offer_little_make_slower_plans() -> None:
    instance = StepInstance(random_graph(6, 60))
    budget = 0.7 * instance.baseline.peak
    fine, coarse = (Levels(instance, Deadline(), QUICK, Solvers(leaf=leaf)).root for leaf in ("retention", "baseline"))
    assert all(len(part.options) <= 2 for part in coarse.parts)
    assert fine.solve(Deadline(), budget, QUICK).objective < coarse.solve(Deadline(), budget, QUICK).objective


@pytest.mark.slow
def test_the_tree_of_parts_accounts_for_all_recomputations() -> None:
    step = partition(layers(16))
    instance = StepInstance(step.captured.graph, step.parts)
    solution = solve(instance, Request(int(0.7 * instance.baseline.peak), effort=QUICK), policy("hiremate"))
    whole, *below = solution.parts
    assert whole.time == solution.time - solution.baseline_time > 0
    assert sum(part.time for part in below if part.level == 1) == whole.time
    assert sum(part.count * part.operations for part in below if part.level == 1) == whole.operations
    assert max(part.level for part in below) == 2


@pytest.mark.parametrize("graph", [random_graph(3, 200), transformer(14), random_graph(4, 9), chain(300)])
def test_the_h_partition_has_every_operation_once_in_parts_of_limited_size(graph: Graph) -> None:
    instance = StepInstance(graph)
    root = h_partition(instance)
    spans = leaves(root)
    forward = [i for span in spans for i in range(*span.forward)]
    backward = [i for span in reversed(spans) for i in range(*span.backward)]
    assert [*forward, *backward] == list(range(len(graph.operations)))
    assert all(len(node.parts) <= h_partitions.PARTS for node in nodes(root))
    assert all(span.forward[1] - span.forward[0] <= h_partitions.LEAF for span in spans)
    assert root.levels() > 2 or len(spans) <= h_partitions.PARTS


def test_the_h_partition_cuts_where_few_values_cross() -> None:
    """Layers of 18 operations, between which one value passes."""
    instance = StepInstance(transformer(12))
    problem, crossing = instance.problem, []
    for span in leaves(h_partition(instance))[1:]:
        begin = span.forward[0]
        early = (s for s in problem.storages if problem.producer[s] < begin <= problem.last_forward_read(s))
        crossing.append(sum(1 for _ in early))
    assert sum(crossing) / len(crossing) <= 2


def test_a_deadline_ends_it_with_what_there_is() -> None:
    instance = StepInstance(random_graph(8, 60))
    with Deadline(0.0) as deadline:
        levels = module.levels(instance, QUICK, deadline)
    assert all(len(part.options) == 1 for part in levels.root.parts)
    assert ("levels", QUICK, Solvers()) not in instance.kept, "what the clock has cut short is not kept"
    assert isinstance(levels.root, LevelModel)


@pytest.mark.quick("21")
@pytest.mark.parametrize("seed", [21, 23])
def test_a_step_no_larger_than_a_leaf_is_planned_as_by_checkmate(seed: int) -> None:
    graph = random_graph(seed, 10)
    budget = int(0.75 * StepInstance(graph).baseline.peak)
    solutions = [
        solve(StepInstance(graph), Request(budget, effort=QUICK), policy(name)) for name in ("hiremate", "checkmate")
    ]
    assert solutions[0].time <= solutions[1].time


def test_nodes_offer_what_has_the_least_peak() -> None:
    """Of every node between leaf and root, a plan near to the least limit that its program meets."""
    step = partition(layers(16))
    about = Levels(StepInstance(step.captured.graph, step.parts), Deadline(), QUICK)
    inner = next(node for node in about.tree.parts if node.parts)
    leaf = leaf_graph(about.instance.graph, inner.span, about.readers)
    parts = about._parts(inner, Problem(leaf.graph))
    least = list(smaller(LevelModel(Problem(leaf.graph), parts), Deadline(), QUICK))[-1]
    peak = simulated_plan(leaf, least)
    assert min(plan.backward_peak for plan in about.offer(inner).plans) <= peak.backward_peak


@pytest.mark.slow
def test_auto_uses_the_tree_of_parts_where_blocks_do_not_repeat() -> None:
    """A step for which `auto` without the tree of parts ends at a slower schedule."""
    instances = [StepInstance(random_graph(0, 128)) for _ in range(2)]
    request = Request(int(0.5 * instances[0].baseline.peak))
    without = replace(AUTO, steps=tuple(step for step in AUTO.steps if step.name != "hiremate"))
    levelled, flat = (solve(known, request, chosen) for known, chosen in zip(instances, (AUTO, without), strict=True))
    assert levelled.strategy.startswith("hiremate")
    assert levelled.time < flat.time


@pytest.mark.slow
def test_no_proposals_where_the_parts_are_proven_to_cost_too_much() -> None:
    instance = StepInstance(random_graph(6, 60))
    request = Request(int(0.7 * instance.baseline.peak), effort=QUICK)
    known = solve(instance, request, policy("greedy"))
    best = instance.judged(known.recomputes, "greedy")
    least = Levels(instance, Deadline(), QUICK).root.least_time(Deadline(), request.budget)
    for bound, proposes in ((int(least) - 1, False), (int(least) + 1, True)):
        proposals = hiremate(instance, request, Context(Deadline(), bound, best=best))
        assert (next(proposals, None) is not None) == proposes
