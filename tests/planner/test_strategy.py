"""Strategies compared with enumeration on tiny steps, and their guarantees on larger ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

from remate.budget import parse_budget
from remate.errors import InfeasibleError
from remate.strategy import CandidatePool, Context, Deadline, Request, Solution, StepInstance, policy, solve
from remate.strategy.registry import bound
from remate_runtime.flat_step.graph import Graph
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate

from .brute_force import fastest
from .strategy_graphs import random_graph, transformer


def solved(graph: Graph, budget: int, gap: float = 0.002, strategy: str = "auto", **options: Any) -> Solution:
    return solve(StepInstance(graph), Request(budget, gap), policy(strategy), **options)


def shares(graph: Graph, *wanted: float) -> list[int]:
    peak = simulate(link(graph)).peak
    return [int(share * peak) for share in wanted]


@pytest.mark.quick("4")
@pytest.mark.parametrize("seed", range(6))
def test_against_enumeration(seed: int) -> None:
    graph = random_graph(seed, 4)
    budgets = shares(graph, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
    best, smallest = fastest(graph, budgets)
    assert StepInstance(graph).floor <= smallest
    for budget, time in zip(budgets, best, strict=True):
        if time is None:
            with pytest.raises(InfeasibleError):
                solved(graph, budget)
            continue
        solution = solved(graph, budget)
        assert solution.lower_bound <= solution.time <= time, "twice the same operation may beat the enumeration"
        assert solution.lower_bound <= time
        assert solution.peak <= budget


def test_transformer_closes_to_a_tenth_of_a_percent() -> None:
    graph = transformer(6)
    for budget in shares(graph, 0.8, 0.6, 0.45):
        solution = solved(graph, budget, gap=0.005)
        assert solution.gap <= 0.005
        assert solution.stopped_by in ("gap", "optimal")


def test_everything_fits() -> None:
    graph = transformer(2)
    (budget,) = shares(graph, 1.0)
    solution = solved(graph, budget)
    assert (solution.recomputes, solution.gap, solution.stopped_by) == ((), 0.0, "optimal")
    assert solution.time == solution.baseline_time == solution.lower_bound


def test_infeasible_budget_tells_what_is_possible() -> None:
    graph = transformer(3)
    (budget,) = shares(graph, 0.05)
    with pytest.raises(InfeasibleError, match="proven floor") as caught:
        solved(graph, budget)
    floor, smallest = caught.value.floor, caught.value.smallest
    assert budget < floor <= smallest
    assert solved(graph, smallest, gap=1.0).peak <= smallest
    share = re.search(r"ask for at least \d+ bytes \(([\d.]+)%\)", str(caught.value))
    assert share is not None
    assert parse_budget(f"{share[1]}%").resolve(shares(graph, 1.0)[0]) >= smallest


def test_time_limit_returns_what_there_is_and_says_so() -> None:
    graph = transformer(4)
    budget, instance = shares(graph, 0.6)[0], StepInstance(graph)
    pool = CandidatePool()
    solve(instance, Request(budget, gap=1.0), pool=pool)
    solution = solve(instance, Request(budget, gap=0.0), pool=pool, time_limit=1e-9)
    assert solution.peak <= budget
    assert solution.stopped_by == "time"


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_time_limit_that_ends_before_anything_fits_still_gives_a_schedule(share: float) -> None:
    graph = transformer(4)
    solution = solve(StepInstance(graph), Request(shares(graph, share)[0]), time_limit=1e-9)
    assert solution.peak <= shares(graph, share)[0]
    assert solution.stopped_by == "time"


def test_bound_grows_as_the_budget_shrinks() -> None:
    graph = transformer(3)
    instance = StepInstance(graph)
    with Deadline() as deadline:
        context = Context(deadline, instance.baseline.time)
        bounds = [bound("cut").prove(instance, Request(b), context) for b in shares(graph, 0.9, 0.7, 0.5, 0.4)]
    assert bounds == sorted(bounds)


def test_unknown_strategy() -> None:
    with pytest.raises(Exception, match="hint: one of auto"):
        solved(transformer(1), 10**9, strategy="best")
