"""Strategies against enumeration on tiny steps, and their promises on larger ones."""

from __future__ import annotations

import pytest

from remate.errors import InfeasibleError
from remate.strategy import solve
from remate.strategy.bound.cuts import CutModel, lower_bound
from remate.strategy.bound.floor import proven_floor
from remate.strategy.milp.highs import Control
from remate.strategy.problem import Problem
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate
from remate_runtime.step.graph import Graph

from .brute_force import fastest
from .strategy_graphs import random_graph, transformer


def shares(graph: Graph, *wanted: float) -> list[int]:
    peak = simulate(link(graph)).peak
    return [int(share * peak) for share in wanted]


@pytest.mark.parametrize("seed", range(6))
def test_against_enumeration(seed: int) -> None:
    graph = random_graph(seed, 4)
    budgets = shares(graph, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
    best, smallest = fastest(graph, budgets)
    problem = Problem(graph)
    assert proven_floor(problem) <= smallest
    for budget, time in zip(budgets, best, strict=True):
        if time is None:
            with pytest.raises(InfeasibleError):
                solve(graph, budget)
            continue
        found = solve(graph, budget)
        assert found.lower_bound <= found.time <= time, "twice the same operation may beat the enumeration"
        assert found.lower_bound <= time
        assert found.peak <= budget


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", ["auto", "flat", "staged", "greedy"])
def test_every_strategy_keeps_its_promises(seed: int, strategy: str) -> None:
    graph = random_graph(100 + seed, 40)
    for budget in shares(graph, 1.0, 0.85, 0.7):
        try:
            found = solve(graph, budget, strategy=strategy, gap=0.02)
        except InfeasibleError as error:
            if strategy == "auto" and error.smallest <= budget:
                pytest.fail(f"a peak of {error.smallest} was found")
            continue
        timeline = simulate(link(graph, found.reruns))
        assert (timeline.peak, timeline.time) == (found.peak, found.time)
        assert found.peak <= budget
        assert found.lower_bound <= found.time
        assert found.gap == pytest.approx((found.time - found.lower_bound) / found.baseline_time)


def test_transformer_closes_to_a_tenth_of_a_percent() -> None:
    graph = transformer(6)
    for budget in shares(graph, 0.8, 0.6, 0.45):
        found = solve(graph, budget, gap=0.005)
        assert found.gap <= 0.005
        assert found.stopped_by in ("gap", "optimal")


def test_everything_fits() -> None:
    graph = transformer(2)
    (budget,) = shares(graph, 1.0)
    found = solve(graph, budget)
    assert (found.reruns, found.gap, found.stopped_by) == ((), 0.0, "optimal")
    assert found.time == found.baseline_time == found.lower_bound


def test_infeasible_budget_tells_what_is_possible() -> None:
    graph = transformer(3)
    (budget,) = shares(graph, 0.05)
    with pytest.raises(InfeasibleError, match="proven floor") as caught:
        solve(graph, budget)
    floor, smallest = caught.value.floor, caught.value.smallest
    assert budget < floor <= smallest
    assert solve(graph, smallest, gap=1.0).peak <= smallest


def test_same_twice() -> None:
    graph = random_graph(7, 40)
    (budget,) = shares(graph, 0.6)
    assert solve(graph, budget, time_limit=None) == solve(graph, budget, time_limit=None)


def test_time_limit_returns_what_there_is() -> None:
    graph = transformer(4)
    (budget,) = shares(graph, 0.6)
    try:
        found = solve(graph, budget, time_limit=0.2, gap=0.0)
    except InfeasibleError:
        return
    assert found.peak <= budget


def test_bound_grows_as_the_budget_shrinks() -> None:
    graph = transformer(3)
    cuts = CutModel(Problem(graph), 1, simulate(link(graph)).peak)
    with Control() as control:
        bounds = [lower_bound(cuts, b, control) for b in shares(graph, 0.9, 0.7, 0.5, 0.4)]
    assert bounds == sorted(bounds)


def test_unknown_strategy() -> None:
    with pytest.raises(Exception, match="hint: one of auto"):
        solve(transformer(1), 10**9, strategy="best")
