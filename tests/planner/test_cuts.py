"""What one cut proves: never more than the exact optimum takes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remate.standalone_graphs.graph import bare_step
from remate.strategy import Context, Deadline, Request, StepInstance
from remate.strategy.bound import cuts
from remate.strategy.bound.cut_model import CutModel, StretchKind, stretches
from remate.strategy.bound.floor import forced_bytes
from remate.strategy.registry import bound
from remate_runtime.format import Gradients

from ..standalone_graphs.dags import random_dag
from .strategy_graphs import transformer
from .test_optimum import truths

STEPS = 5  # seeds that a part of the slow test takes: about 24 steps


def proven(name: str, about: StepInstance, budget: int) -> int:
    """The bound if only a slow schedule is known, so that it uses all methods."""
    context = Context(Deadline(), about.baseline.time)
    context.best = replace(about.baseline, time=1000 * about.baseline.time)
    return bound(name).prove(about, Request(budget), context)


def compare(seeds: range, delivered: Gradients = "retained") -> int:
    """Hold one cut against the truth on every budget of every step. Returns how many steps there were."""
    steps = 0
    for name, about, optima in truths(seeds, delivered):
        steps += 1
        for budget, optimum in optima.items():
            item = proven("cut", about, budget)
            assert item <= optimum, f"{name} at {budget}: bound {item} above the optimum {optimum}"
    return steps


@pytest.mark.parametrize("count", [1, 2, 3])
def test_at_most_the_requested_cuts_and_the_fullest_of_them(count: int) -> None:
    problem = StepInstance(transformer(4)).problem
    forced = forced_bytes(problem)
    every = cuts.records(problem, forced, 1000)
    assert len(every) > 3
    chosen = cuts.records(problem, forced, count)
    assert len(chosen) == count
    assert chosen[-1] == every[-1]


@pytest.mark.slow
def test_a_sample_of_tiny_steps() -> None:
    assert compare(range(100, 101)) >= 4


@pytest.mark.slow
def test_a_sample_where_gradients_are_gone_when_delivered() -> None:
    assert compare(range(100, 101), "accumulated") >= 4


@pytest.mark.slow
@pytest.mark.parametrize("first", [102])
def test_tiny_steps(first: int) -> None:
    assert compare(range(first, first + STEPS)) >= 20


@pytest.mark.parametrize("kind", ["long", "overlapping"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_stretches_are_made_up_of_shorter_ones(count: int, kind: StretchKind) -> None:
    result = stretches(count, kind)
    assert {(c, c + 1) for c in range(count)} | {(c, count) for c in range(count)} <= set(result)
    for (begin, end), parts in result.items():
        assert bool(parts) == (end - begin > 1)
        if parts:
            assert all(part in result for part in parts)
            assert [a for a, _ in parts] == [begin, *(b for _, b in parts[:-1])]
            assert parts[-1][1] == end
    assert (len(result) > 2 * count - 1) == (kind == "overlapping" and count > 2)


def test_integers_are_not_asked_where_their_relaxation_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS cannot be ended while it works on the root of a search, so the work of the relaxation decides
    beforehand."""
    instance = bare_step(random_dag(3, 9)).whole
    budget = int(0.75 * instance.baseline.peak)
    asked: list[bool] = []
    solve = CutModel.solve

    def counted(self: CutModel, *args: Any, relax: bool = False) -> Any:
        asked.append(relax)
        return solve(self, *args, relax=relax)

    monkeypatch.setattr(CutModel, "solve", counted)
    by_integers = proven("cuts", instance, budget)
    assert not all(asked)
    asked.clear()
    monkeypatch.setattr(cuts, "LIGHT", -1.0)  # presolving alone counts as no work
    by_relaxations = proven("cuts", instance, budget)
    assert all(asked)
    assert instance.baseline.time <= by_relaxations <= by_integers
