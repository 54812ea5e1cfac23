"""Plans without a budget: the knee, the smallest peak, the smallest peak for a time; and what a refused budget says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.budget import BudgetError, parse_budget

from ..runtime.small import data, seeded


def planned(**options: Any) -> Any:
    layers = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.GELU())]
    model = seeded(nn.Sequential(*layers)).train()
    schedule: Any = remate.plan(model, (data(256, 16),), cost="cpu", effort="quick", **options)
    return schedule.solve


def test_the_default_is_the_knee_and_says_so() -> None:
    said: list[str] = []
    solve = planned(progress=said.append)
    assert solve.peak < solve.baseline_peak
    assert solve.settings.budget == str(solve.budget)
    assert any("(the knee, chosen)" in line for line in said)
    small = planned(budget="min", progress=None)
    assert small.peak <= solve.peak
    assert small.time >= solve.time


@pytest.mark.slow
def test_a_slowdown_bounds_the_time() -> None:
    solve = planned(slowdown="10%", progress=None)
    assert solve.peak < solve.baseline_peak
    assert solve.time <= 1.1 * solve.baseline_time
    assert planned(budget="min", slowdown=0.1, progress=None).peak == solve.peak
    assert planned(slowdown=0, progress=None).time <= solve.baseline_time


def test_a_step_that_can_hold_no_less_is_planned_as_it_is() -> None:
    model = nn.Linear(4, 4)
    cases: list[dict[str, Any]] = [{}, {"budget": "min"}, {"slowdown": "5%"}]
    for options in cases:
        schedule: Any = remate.plan(model, (torch.ones(2, 4),), cost="cpu", progress=None, **options)
        assert schedule.solve.peak == schedule.solve.baseline_peak


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"budget": "60"}, 'is 60 bytes\n  hint: is 60% of .* meant\\? write "60%", or "60B"'),
        ({"budget": "fit"}, "remate.fit"),
        ({"slowdown": "fast"}, "slowdown='10%'"),
        ({"slowdown": -0.1}, "not a share of the time"),
        ({"slowdown": 10}, "10 times the time of the step"),
        ({"budget": "60%", "slowdown": "10%"}, "remove one of them"),
        ({"at": "0", "budget": "min"}, "need a budget"),
    ],
)
def test_what_cannot_be_meant_is_asked(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BudgetError, match=told):
        planned(**options)


def test_parts_that_need_more_than_the_default_get_their_smallest_peak() -> None:
    with pytest.raises(remate.InfeasibleError) as raised:
        planned(at="0", budget="60%", progress=None)
    assert planned(at="0", progress=None).peak == raised.value.smallest


def test_bytes_stay_bytes() -> None:
    assert parse_budget("60B").size == parse_budget(60).size == 60


def test_a_refused_budget_names_the_operation_that_holds_the_floor() -> None:
    with pytest.raises(remate.InfeasibleError, match=r"proven floor: \d+ bytes \(.*\), held at \S+ \(aten\.") as raised:
        planned(budget="5%", progress=None)
    assert raised.value.holder
