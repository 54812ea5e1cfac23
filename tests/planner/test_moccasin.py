"""Moccasin's constraint program, if OR-Tools is installed."""

from __future__ import annotations

import sys

import pytest

from remate.errors import InfeasibleError
from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.cpsat import moccasin
from remate_runtime.errors import MissingExtraError
from remate_runtime.link import link, simulate

from .brute_force import fastest
from .strategy_graphs import random_graph


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_of_a_tiny_step_is_faster(seed: int) -> None:
    pytest.importorskip("ortools")
    graph = random_graph(seed, 4)
    peak = simulate(link(graph)).peak
    budgets = [int(share * peak) for share in (0.9, 0.75)]
    for budget, best in zip(budgets, fastest(graph, budgets)[0], strict=True):
        if best is not None:
            solution = solve(StepInstance(graph), Request(budget, 0.0), policy("moccasin"))
            assert solution.time == best


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)  # type: ignore[arg-type]
    instance = StepInstance(random_graph(1, 8))
    with pytest.raises(MissingExtraError, match=r"remate\[cpsat\]"):
        solve(instance, Request(instance.baseline.peak - 1), policy("moccasin"))


@pytest.mark.slow
def test_it_ends_at_the_limit_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it takes minutes for this step. What writes the model, and what comes before a search, ask for no
    clock."""
    pytest.importorskip("ortools")
    monkeypatch.setattr(moccasin, "GRACE", 0.5)
    instance = StepInstance(random_graph(3, 250))
    with pytest.raises(InfeasibleError, match="within the time limit") as told:
        solve(instance, Request(instance.baseline.peak // 2), policy("moccasin"), time_limit=0.5)
    assert "a longer time limit, another strategy" in str(told.value)
