"""Plans of blocks alone, and the choice among them on the level above."""

from __future__ import annotations

import difflib
from functools import cache

import pytest
from msgspec.structs import replace

from remate.api import plan as planner
from remate.partition.canonical import readers_of
from remate.partition.hierarchy import Hierarchy
from remate.partition.leaf_graph import leaf_graph
from remate.strategy import NORMAL, Deadline, Request, StepInstance, policy, solve
from remate.strategy.blocks.block_frontier import block_frontier
from remate.strategy.blocks.block_plan import simulated_plan
from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.schedule import BASELINE, Recompute, Schedule
from remate_runtime.format.writer import encode
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

from ..models import ZOO


@cache
def prepared(name: str) -> Hierarchy:
    model, args, kwargs = ZOO[name].build()
    return planner.prepare(model, args, kwargs, "h200")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_mixer", "tiny_gpt"])
def test_frontier_of_a_block(name: str) -> None:
    graph = prepared(name).captured.graph
    readers = readers_of(graph)
    for part in prepared(name).leaves():
        leaf = leaf_graph(graph, part, readers)
        assert [graph.operations[i].op for i in leaf.operations] == [op.op for op in leaf.graph.operations]
        plans = block_frontier(leaf, Deadline(), NORMAL)
        assert any(not plan.recomputes for plan in plans)
        for plan in plans:
            assert plan == simulated_plan(leaf, plan.recomputes)
            others = [p for p in plans if p is not plan and p.recomputes]
            dominated = [p for p in others if all(x <= y for x, y in zip(p.figures, plan.figures, strict=True))]
            assert not dominated or not plan.recomputes
        assert [p.retained for p in plans[:-1]] == sorted(p.retained for p in plans[:-1])


@pytest.mark.slow
def test_a_block_retains_what_the_whole_step_holds_for_it() -> None:
    """Bytes retained by the blocks add up to what the simulator holds at the forward/backward boundary, but for what
    outlives blocks."""
    graph = prepared("mlp_mixer").captured.graph
    readers = readers_of(graph)
    leaves = [leaf_graph(graph, part, readers) for part in prepared("mlp_mixer").leaves()]
    timeline = simulate(link(graph))
    assert sum(simulated_plan(leaf, ()).retained for leaf in leaves) >= timeline.after[timeline.backward_start]


@pytest.mark.quick("tiny_gpt-0.8")
@pytest.mark.parametrize("share", [0.8, 0.6])
@pytest.mark.parametrize("name", ["mlp_mixer", "tiny_gpt"])
def test_a_choice_fits_the_budget(name: str, share: float) -> None:
    step = prepared(name)
    base = simulate(link(step.captured.graph))
    budget = int(share * base.peak)
    solution = solve(StepInstance(step.captured.graph, step.parts), Request(budget), policy("hierarchical"))
    assert (solution.strategy, solution.solver.split()[0]) == ("hierarchical", "highs")
    judged = simulate(link(step.captured.graph, solution.recomputes))
    assert (judged.peak, judged.time) == (solution.peak, solution.time)
    assert judged.peak <= budget


def extra(schedule: Schedule, at: int, plan: str) -> int:
    """ns that instance `at` of the program takes more by `plan` than by the plan that it has."""
    name = schedule.program[at].block
    block, ns = schedule.blocks[name], schedule.costs[name]
    took = {
        BASELINE: 0,
        **{
            n: sum(ns[i] for r in plan if isinstance(r, Recompute) for i in r.recompute)
            for n, plan in block.plans.items()
        },
    }
    return took[plan] - took[schedule.program[at].plan]


def test_files_offer_plans_and_an_instance_moves_to_one_by_a_line() -> None:
    step = prepared("tiny_gpt")
    base = simulate(link(step.captured.graph))
    budget = int(0.7 * base.peak)
    solution = solve(StepInstance(step.captured.graph, step.parts), Request(budget), policy("hierarchical"))
    schedule = planner.schedule_of(step, solution, budget, "h200", name="gpt")
    repeated = {i.block for i in schedule.program if sum(j.block == i.block for j in schedule.program) > 1}
    for block in repeated:
        assert len(schedule.blocks[block].plans) >= 2
    at = next(k for k, i in enumerate(schedule.program) if i.block in repeated)
    peaks: set[int] = set()
    for plan in (BASELINE, *schedule.blocks[schedule.program[at].block].plans):
        moved = replace(schedule.program[at], plan=plan)
        edited = replace(schedule, program=(*schedule.program[:at], moved, *schedule.program[at + 1 :]))
        before, after = (encode(item).decode().splitlines() for item in (schedule, edited))
        taken = [line for line in difflib.ndiff(before, after) if line.startswith("- ")]
        assert len(taken) <= 2, "the instance, and the plan behind it where the two are longer than a line"
        expanded = expand(edited)
        timeline = simulate(link(expanded.graph, expanded.recomputes))
        assert timeline.time == solution.time + extra(schedule, at, plan)
        peaks.add(timeline.peak)
    assert len(peaks) > 1, "another plan of one instance changes the peak"


@pytest.mark.slow
def test_rockmate_saves_what_its_paper_says() -> None:
    """X. Zhao et al., Rockmate, ICML 2023: activations divided by two to five for 10 to 20% more time; here of the
    whole peak."""
    model = ZOO["gpt2"].build(layers=6, width=256, heads=4, batch=8, length=256, vocab=2048)
    step = planner.prepare(*model, cost="h200")
    instance = StepInstance(step.captured.graph, step.parts)
    solution = solve(instance, Request(int(0.3 * instance.baseline.peak)), policy("rockmate"))
    assert solution.time <= 1.2 * solution.baseline_time
