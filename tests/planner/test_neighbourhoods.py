"""Large-neighbourhood search: what its programs count is what the simulator counts, and what they find is better."""

from __future__ import annotations

from functools import cache

import pytest

from remate.strategy import QUICK, Candidate, Context, Deadline, Instance, Request, solve
from remate.strategy.effort import NORMAL
from remate.strategy.milp.formulation import Formulation
from remate.strategy.milp.neighbourhoods import NEIGHBOURHOODS, expressible, stages, windows_around
from remate.strategy.milp.warm_start import warm_start
from remate.strategy.portfolio import alone
from remate.strategy.solve import candidates
from remate_runtime.link import link, simulate
from remate_runtime.step.graph import Graph

from .exact_optimum import ExactOptimum
from .strategy_graphs import random_graph, transformer
from .tiny_steps import KINDS, tiny_step


@cache
def greedily(graph_of: str, seed: int, share: float) -> tuple[Instance, Candidate]:
    """A step with a schedule that fits this share of its peak."""
    graphs = {
        "transformer": lambda: transformer(2),
        "random": lambda: random_graph(seed, 30),
        **{kind: (lambda kind=kind: tiny_step(seed, 12, kind)) for kind in KINDS},
    }
    about = Instance(graphs[graph_of]())
    budget = about.floor + int(share * (about.baseline.peak - about.floor))
    found = solve(about, Request(budget), alone("greedy"))
    return about, about.judged(found.reruns, "greedy")


CASES = [
    ("transformer", 0, 0.3),
    ("random", 7, 0.4),
    ("random", 8, 0.3),
    *((kind, seed, 0.5) for kind in KINDS for seed in (5, *range(20, 24))),
]


@pytest.mark.parametrize(("graph", "seed", "share"), CASES)
def test_a_program_in_which_all_is_settled_counts_as_the_simulator_does(graph: str, seed: int, share: float) -> None:
    about, given = greedily(graph, seed, share)
    problem = about.problem
    if not expressible(problem, given):
        pytest.skip("a rerun in the forward, of which the program knows nothing")
    in_order = about.judged(sorted(given.reruns, key=lambda rerun: (rerun.before, rerun.op)), "greedy")
    windows = windows_around(problem, stages(problem), given, ())
    model = Formulation(problem, windows, about.baseline.peak)
    start = warm_start(problem, windows, given.reruns)
    assert windows.sure is not None
    assert windows.sure == set(windows.position)
    assert sum(1 for key, value in start.items() if key[0] == "rerun" and value) == len(given.reruns)
    with Deadline() as deadline:
        model.around(deadline, about.baseline.peak, windows.sure, start, nodes=10, work=1e7)
        counted = model.peak(model.smallest(deadline, NORMAL, tolerance=0.0))
    saved = sum(
        problem.state[op] for op in {rerun.op for rerun in given.reruns}
    )  # of generators: a few kilobytes, not counted
    assert in_order.peak - saved - 1 <= counted <= in_order.peak + 1


def improved(about: Instance, given: Candidate, budget: int) -> Candidate:
    with Deadline() as deadline:
        context = Context(deadline, about.baseline.time, 0, given)
        for found in candidates(NEIGHBOURHOODS, about, Request(budget, effort=QUICK), context):
            if found.peak <= budget and context.best is not None and found.time < context.best.time:
                context.best = found
        assert context.best is not None
        return context.best


def test_it_improves_on_what_runs_whole_segments_again() -> None:
    about = Instance(transformer(2))
    whole = solve(about, Request(int(0.6 * about.baseline.peak), effort=QUICK), alone("chen-sqrt"))
    given = about.judged(whole.reruns, "chen-sqrt")
    found = improved(about, given, given.peak)
    assert found.time - about.baseline.time < 0.7 * (given.time - about.baseline.time)
    timeline = simulate(link(about.graph, found.reruns))
    assert (timeline.time, timeline.peak) == (found.time, found.peak)
    assert found.peak <= given.peak


def small(seed: int, kind: str) -> Graph:
    return tiny_step(seed, 5, kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "random"])
def test_the_optimum_of_a_tiny_step_is_not_passed(kind: str) -> None:
    """Of steps that one program holds whole it finds the optimum, but for reruns in the forward and in another order."""
    for seed in range(2):
        graph = small(seed, kind)
        about, truth = Instance(graph), ExactOptimum(graph)
        budget = (truth.least_peak(about.baseline.peak) + about.baseline.peak) // 2
        best = truth.fastest(budget)
        assert best is not None
        found = solve(about, Request(budget, gap=0.0, effort=QUICK), alone("neighbourhoods"))
        assert best.time <= found.time
