"""Large-neighbourhood search: its programs count like the simulator, and its results are better."""

from __future__ import annotations

from functools import cache

import pytest

from remate.strategy import QUICK, Candidate, Context, Deadline, Request, StepInstance, solve
from remate.strategy.effort import NORMAL
from remate.strategy.milp.formulation import Formulation
from remate.strategy.milp.neighbourhoods import NEIGHBOURHOODS, expressible, stages, windows_around
from remate.strategy.milp.warm_start import warm_start
from remate.strategy.portfolio import alone
from remate.strategy.solve import candidates
from remate_runtime.flat_step.graph import Graph
from remate_runtime.link import link, simulate

from .exact_optimum import ExactOptimum
from .strategy_graphs import random_graph, transformer
from .tiny_steps import KINDS, tiny_step


@cache
def greedily(graph_of: str, seed: int, share: float) -> tuple[StepInstance, Candidate]:
    """A step with a schedule that fits this share of its peak."""
    graphs = {
        "transformer": lambda: transformer(2),
        "random": lambda: random_graph(seed, 30),
        **{kind: (lambda kind=kind: tiny_step(seed, 12, kind)) for kind in KINDS},
    }
    about = StepInstance(graphs[graph_of]())
    budget = about.floor + int(share * (about.baseline.peak - about.floor))
    solution = solve(about, Request(budget), alone("greedy"))
    return about, about.judged(solution.recomputes, "greedy")


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
        pytest.skip("a recomputation in the forward, of which the program knows nothing")
    in_order = about.judged(sorted(given.recomputes, key=lambda recompute: (recompute.before, recompute.op)), "greedy")
    windows = windows_around(problem, stages(problem), given, ())
    model = Formulation(problem, windows, about.baseline.peak)
    start = warm_start(problem, windows, given.recomputes)
    assert windows.sure is not None
    assert windows.sure == set(windows.position)
    assert sum(1 for key, value in start.items() if key[0] == "recompute" and value) == len(given.recomputes)
    with Deadline() as deadline:
        model.around(deadline, about.baseline.peak, windows.sure, start, nodes=10, work=1e7)
        counted = model.peak(model.smallest(deadline, NORMAL, tolerance=0.0))
    saved = sum(
        problem.state[op] for op in {recompute.op for recompute in given.recomputes}
    )  # of generators: a few kilobytes, not counted
    assert in_order.peak - saved - 1 <= counted <= in_order.peak + 1


def improved(about: StepInstance, given: Candidate, budget: int) -> Candidate:
    with Deadline() as deadline:
        context = Context(deadline, about.baseline.time, 0, given)
        for solution in candidates(NEIGHBOURHOODS, about, Request(budget, effort=QUICK), context):
            if solution.peak <= budget and context.best is not None and solution.time < context.best.time:
                context.best = solution
        assert context.best is not None
        return context.best


@pytest.mark.slow
def test_it_improves_on_what_runs_whole_segments_again() -> None:
    about = StepInstance(transformer(2))
    whole = solve(about, Request(int(0.6 * about.baseline.peak), effort=QUICK), alone("chen-sqrt"))
    given = about.judged(whole.recomputes, "chen-sqrt")
    solution = improved(about, given, given.peak)
    assert solution.time - about.baseline.time < 0.7 * (given.time - about.baseline.time)
    timeline = simulate(link(about.graph, solution.recomputes))
    assert (timeline.time, timeline.peak) == (solution.time, solution.peak)
    assert solution.peak <= given.peak


def small(seed: int, kind: str) -> Graph:
    return tiny_step(seed, 5, kind)


@pytest.mark.slow("views")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "random"])
def test_the_optimum_of_a_tiny_step_is_not_passed(kind: str) -> None:
    """Of steps that one program holds whole it finds the optimum, but for recomputations in the forward and in another
    order."""
    for seed in range(2):
        graph = small(seed, kind)
        about, truth = StepInstance(graph), ExactOptimum(graph)
        budget = (truth.least_peak() + about.baseline.peak) // 2
        best = truth.fastest(budget)
        assert best is not None
        solution = solve(about, Request(budget, gap=0.0, effort=QUICK), alone("neighbourhoods"))
        assert best.time <= solution.time
