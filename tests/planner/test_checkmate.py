"""Checkmate: the optimum of its model is that of enumeration on tiny steps, its rounding fits, and published optima are
met."""

from __future__ import annotations

import pytest

from remate.errors import InfeasibleError, NotApplicableError
from remate.strategy import QUICK, Request, Solution, StepInstance, policy, solve
from remate_runtime.link import link, simulate

from .brute_force import fastest
from .strategy_graphs import forward_only, random_graph, transformer


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_of_a_tiny_step_is_faster(seed: int) -> None:
    graph = random_graph(seed, 4)
    peak = simulate(link(graph)).peak
    budgets = [int(share * peak) for share in (0.95, 0.85, 0.75, 0.65)]
    for budget, best in zip(budgets, fastest(graph, budgets)[0], strict=True):
        if best is not None:
            assert solved("checkmate", StepInstance(graph), budget).time == best


def solved(name: str, instance: StepInstance, budget: int) -> Solution:
    return solve(instance, Request(budget, 0.0), policy(name))


def test_everything_may_run_again_where_there_is_no_backward() -> None:
    """The early values of the chain are read again at its end, each one after the one before it: a run of each makes
    all."""
    instance = StepInstance(forward_only(12))
    solution = solved("checkmate", instance, instance.baseline.peak - 20)
    assert solution.time == solved("exact", instance, instance.baseline.peak - 20).time


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(3))
def test_the_relaxation_rounded_is_no_faster_than_the_optimum(seed: int) -> None:
    instance = StepInstance(random_graph(seed, 10))
    for share in (0.9, 0.8):
        budget = int(share * instance.baseline.peak)
        try:
            best, near = (solved(name, instance, budget) for name in ("checkmate", "checkmate-approx"))
        except InfeasibleError:
            continue
        assert instance.baseline.time <= best.time <= near.time
        assert near.peak <= budget


def test_a_step_too_large_is_refused_with_its_size() -> None:
    instance = StepInstance(transformer(3))
    with pytest.raises(NotApplicableError, match=r"up to 3,000 variables with quick effort, .* has about 2\d,\d{3}"):
        solve(instance, Request(int(0.8 * instance.baseline.peak), effort=QUICK), policy("checkmate"))
    assert (
        solve(instance, Request(int(0.8 * instance.baseline.peak), effort=QUICK)).peak <= 0.8 * instance.baseline.peak
    )
