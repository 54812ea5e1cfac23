"""Cuts that grow where schedules exceed the budget: what they prove is true, and their schedules are often optimal."""

from __future__ import annotations

import pytest

from remate.strategy import Context, Deadline, Request, StepInstance, policy, solve
from remate.strategy.bound import cut_step as module
from remate.strategy.bound.cut_model import CutModel
from remate.strategy.bound.cut_step import cut_step, useful
from remate.strategy.bound.floor import forced_bytes
from remate.strategy.effort import NORMAL
from remate.strategy.problem import Problem
from remate.strategy.registry import strategy
from remate.strategy.solve import candidates
from remate_runtime.format import Gradients

from .strategy_graphs import Tape, random_graph, transformer
from .test_optimum import truths


def searched(about: StepInstance, budget: int) -> tuple[int, int | None]:
    """Return the ns that growing cuts prove, and the ns of their best schedule that fits."""
    context = Context(Deadline(), about.baseline.time)
    request = Request(budget)
    tried = list(candidates(strategy("growing-cuts"), about, request, context))
    return context.bound, min((c.time for c in tried if c.peak <= budget), default=None)


def compare(seeds: range, delivered: Gradients = "retained") -> tuple[int, int]:
    """Compare with the optimum for every budget of every step. Return how many budgets there were, and for how many
    the schedule was optimal."""
    budgets = optimal = 0
    for name, about, optima in truths(seeds, delivered):
        for budget, optimum in optima.items():
            bound, time = searched(about, budget)
            assert bound <= optimum, f"{name} at {budget}: bound {bound} above the optimum {optimum}"
            assert time is None or time >= optimum
            budgets += 1
            optimal += time == optimum
    return budgets, optimal


@pytest.mark.slow
@pytest.mark.parametrize("delivered", ["retained", "accumulated"])
def test_tiny_steps(delivered: Gradients) -> None:
    budgets, optimal = compare(range(100, 104), delivered)
    assert budgets >= 20
    assert optimal >= 0.5 * budgets


@pytest.mark.parametrize("share", [0.5, 0.6, 0.8])
def test_a_chain_of_blocks_is_solved_to_the_end(share: float) -> None:
    about = StepInstance(transformer(3))
    budget = int(share * about.baseline.peak)
    bound, time = searched(about, budget)
    assert time is not None
    assert time - bound <= 0.01 * about.baseline.time
    auto = solve(StepInstance(transformer(3)), Request(budget))
    assert time <= 1.01 * auto.time


def test_the_bound_of_a_strategy_is_that_of_the_solution() -> None:
    about = StepInstance(transformer(3))
    solution = solve(about, Request(int(0.6 * about.baseline.peak)), policy("growing-cuts"))
    assert solution.strategy == "growing-cuts"
    assert about.baseline.time < solution.lower_bound <= solution.time


def test_a_step_whose_backward_reads_nothing_of_forward_ends_the_search() -> None:
    tape = Tape()
    hidden = tape.forward((tape.source("x", 100),), (100,), 5, parameter=100)
    about = StepInstance(tape.graph(tape.forward((hidden,), (1,), 2, saves_inputs=False)))
    assert searched(about, about.baseline.peak - 1) == (about.baseline.time, None)


@pytest.mark.parametrize("seed", range(12))
def test_a_simplified_step_has_the_same_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    about = StepInstance(random_graph(seed, 30))
    problem, peak = about.problem, about.baseline.peak
    forced = forced_bytes(problem)
    simple = cut_step(problem, 0)
    monkeypatch.setattr(module._Merged, "_may_join", lambda *_: False)
    whole = cut_step(problem, 0)
    places = [problem.backward[0], problem.backward[len(problem.backward) // 2]]
    for share in (0.5, 0.7):
        bounds = [
            CutModel(step, 2, peak).solve(Deadline(), int(share * peak), NORMAL, places, forced, relax=False).bound
            for step in (whole, simple)
        ]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


def test_operations_join_their_only_reader() -> None:
    problem = StepInstance(transformer(2)).problem
    operations, storages = useful(problem)
    step = cut_step(problem, 0)
    assert len(step.operations) < len(operations)
    runs = [f for run in step.runs.values() for f in run]
    assert sorted(runs) == operations  # each operation runs with one
    joined = [s for between in step.joined.values() for s in between]
    assert sorted([*step.storages, *joined]) == storages
    assert sum(step.time.values()) == sum(problem.time[f] for f in operations)


def test_small_storages_are_negligible_up_to_a_limit() -> None:
    problem = StepInstance(transformer(2)).problem
    sizes = sorted(problem.size[s] for s in useful(problem)[1])
    limit = sum(sizes[:3])
    assert 0 < negligible(problem, limit) <= limit
    assert negligible(problem, 0) == sum(size for size in sizes if not size)


def negligible(problem: Problem, limit: int) -> int:
    """Return the bytes of the storages that are left out."""
    step = cut_step(problem, limit)
    kept = {*step.storages, *(s for between in step.joined.values() for s in between)}
    return sum(problem.size[s] for s in useful(problem)[1] if s not in kept)
