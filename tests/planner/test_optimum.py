"""Tiny steps against their exact optimum: bounds and floors hold, what is feasible is found, and found as it should
be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from remate.errors import InfeasibleError
from remate.strategy import Request, Solution, StepInstance, solve
from remate_runtime.flat_step.graph import Graph
from remate_runtime.format import Gradients
from remate_runtime.link import link, simulate

from .exact_optimum import ExactOptimum
from .tiny_steps import KINDS, tiny_step

ITEMS = 10  # storages, copies and states of a step that the truth is sought of: it looks at all their subsets


def tiny_steps(seeds: range, delivered: Gradients) -> Iterator[tuple[str, Graph, ExactOptimum]]:
    for seed in seeds:
        for kind in KINDS:
            graph = replace(tiny_step(seed, 3 + seed % 6, kind), delivered=delivered)
            truth = ExactOptimum(graph)
            if len(truth.items) <= ITEMS:
                yield f"{kind} {seed}", graph, truth


def budgets(least: int, peak: int) -> list[int]:
    """From the smallest feasible budget to just below the baseline's peak."""
    between = (least, (3 * least + peak) // 4, (least + peak) // 2, (least + 3 * peak) // 4, peak - 1)
    return sorted({budget for budget in between if least <= budget < peak})


def truths(seeds: range, delivered: Gradients) -> Iterator[tuple[str, StepInstance, dict[int, int]]]:
    """Name, instance, and the time of the exact optimum by budget."""
    for name, graph, truth in tiny_steps(seeds, delivered):
        about = StepInstance(graph)
        peak = about.baseline.peak
        optima: dict[int, int] = {}
        for budget in budgets(truth.least_peak(), peak):
            optimum = truth.fastest(budget)
            assert optimum is not None
            optima[budget] = optimum.time
        yield name, about, optima


def planned(graph: Graph, budget: int) -> Solution | InfeasibleError:
    try:
        return solve(StepInstance(graph), Request(budget, gap=0.0))
    except InfeasibleError as error:
        return error


def compare(seeds: range, delivered: Gradients = "retained") -> tuple[int, int]:
    """Plan every budget of every step. Returns the number of plans, and how many of them are optimal."""
    count = optimal = 0
    for name, graph, truth in tiny_steps(seeds, delivered):
        peak = simulate(link(graph)).peak
        least = truth.least_peak()
        floor = StepInstance(graph).floor
        assert floor <= least, f"{name}: floor {floor} above a peak of {least}"
        if least > floor:
            assert isinstance(planned(graph, least - 1), InfeasibleError), name
        for budget in budgets(least, peak):
            optimum = truth.fastest(budget)
            assert optimum is not None
            timeline = simulate(link(graph, optimum.recomputes))
            assert timeline.peak <= budget, f"{name} at {budget}: the truth is none"
            assert timeline.time == optimum.time, f"{name} at {budget}: the truth is none"
            result = planned(graph, budget)
            assert isinstance(result, Solution), f"{name} at {budget}: feasible, but told {result}"
            assert result.lower_bound <= optimum.time, f"{name} at {budget}: bound above the optimum"
            assert result.peak <= budget
            assert result.time >= optimum.time, f"{name} at {budget}: the truth is none"
            count, optimal = count + 1, optimal + (result.time == optimum.time)
    return count, optimal


def test_a_sample_of_tiny_steps() -> None:
    count, optimal = compare(range(3))
    assert count >= 40
    assert optimal >= 0.99 * count


@pytest.mark.slow
def test_a_sample_where_gradients_are_gone_when_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remate_runtime.link.deliveries.TOGETHER", 1)
    count, optimal = compare(range(3), "consumed")
    assert count >= 40
    assert optimal >= 0.99 * count


@pytest.mark.slow
@pytest.mark.parametrize("delivered", ["retained", "accumulated"])
@pytest.mark.parametrize("first", [3])
def test_tiny_steps(first: int, delivered: Gradients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remate_runtime.link.deliveries.TOGETHER", 1)
    count, optimal = compare(range(first, first + 4), delivered)
    assert count >= 60
    assert optimal >= 0.99 * count
