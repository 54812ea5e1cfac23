"""`cost="compiled"`: the budget is what the compiled engine holds; the file stays an ordinary schedule."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.api import plan_compiled
from remate.api.options import PlanOptions
from remate.api.rebind import rebind
from remate.api.replan import prepare_again, replan
from remate.budget import parse_budget
from remate.errors import ProfileError
from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.check import promises
from remate.schedule_tools.figures import refreshed
from remate_runtime import apply, predicted_peak
from remate_runtime.engine import PredictedMemory
from remate_runtime.errors import EngineError
from remate_runtime.format import Compiled, Schedule, decode, encode


def build(layers: int = 6) -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))]
    return nn.Sequential(*parts), (torch.randn(512, 32),)


def planned(model: nn.Module, args: tuple[torch.Tensor], budget: str = "70%", effort: str = "normal") -> Schedule:
    return remate.plan(model, args, budget=budget, cost="compiled", strategy="greedy", effort=effort, cache=False)


def four_fifths(schedule: Schedule, budget: int, *_: Any) -> PredictedMemory:
    """A compiler that saves a fifth, with which a step takes longer the more is recomputed. It cannot split."""
    peak = schedule.solve.peak * 4 // 5
    return PredictedMemory(peak, peak, (), (schedule.solve.time,))


@pytest.fixture
def compiled_schedule(monkeypatch: pytest.MonkeyPatch) -> Schedule:
    monkeypatch.setattr(plan_compiled, "predict_memory", four_fifths)
    model, args = build()
    return planned(model, args)


@pytest.mark.slow
def test_room_that_compiling_leaves_is_used(compiled_schedule: Schedule) -> None:
    solve, requested = compiled_schedule.solve, compiled_schedule.solve.compiled
    assert requested is not None
    assert requested.peak is not None
    assert requested.budget == parse_budget("70%").resolve(solve.baseline_peak)
    assert requested.peak == solve.peak * 4 // 5
    assert 0.9 * requested.budget < requested.peak <= requested.budget < solve.peak <= solve.budget
    assert solve.cost == "compiled"


def test_without_need_nothing_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_compiled, "predict_memory", four_fifths)
    model, args = build()
    result = planned(model, args, "90%")
    assert result.solve.time == result.solve.baseline_time


@pytest.mark.slow
def test_of_those_that_keep_the_budget_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where segments had to be split for the larger plans."""
    seen: list[Schedule] = []

    def slower(schedule: Schedule, budget: int, *_: Any) -> PredictedMemory:
        seen.append(schedule)
        peak = schedule.solve.peak * 4 // 5
        return PredictedMemory(min(budget, peak), peak, (), (len(seen),))

    monkeypatch.setattr(plan_compiled, "predict_memory", slower)
    model, args = build()
    result = planned(model, args)
    assert len(seen) > 1
    assert result.solve.time == seen[0].solve.time


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_of_those_that_cannot_be_told_apart_the_smallest_is_taken(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan takes up to 1% more the more it runs again: in all that it does, or by doing more beside what all do."""
    seen: list[Schedule] = []

    def predicted(schedule: Schedule, budget: int, *_: Any) -> PredictedMemory:
        seen.append(schedule)
        solve = schedule.solve
        more = 10**7 * (solve.time - solve.baseline_time) // solve.baseline_time
        return PredictedMemory(
            solve.peak * 4 // 5, solve.peak * 4 // 5, (), (10**9 + more,) if alike else (10**9, more)
        )

    monkeypatch.setattr(plan_compiled, "predict_memory", predicted)
    model, args = build()
    result = planned(model, args)
    limit = parse_budget("70%").resolve(result.solve.baseline_peak)
    times = {item.solve.time for item in seen if item.solve.peak * 4 // 5 <= limit}
    assert len(times) > 1
    assert result.solve.time == (max(times) if alike else min(times))


def test_no_plan_keeps_a_budget_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_compiled, "predict_memory", lambda *_: PredictedMemory(1 << 40, 1 << 40, (), (1,)))
    model, args = build()
    with pytest.raises(remate.InfeasibleError, match="none was found") as caught:
        planned(model, args)
    parameters = sum(4 * parameter.numel() for parameter in model.parameters())
    assert caught.value.floor == parameters  # whose gradients the step ends with
    assert caught.value.smallest == 1 << 40


def test_it_is_an_ordinary_schedule(compiled_schedule: Schedule) -> None:
    assert decode(encode(compiled_schedule)) == compiled_schedule
    assert not list(promises(analyse(compiled_schedule)))
    assert refreshed(compiled_schedule).schedule == compiled_schedule


def test_the_interpreter_says_that_it_does_not_keep_it(compiled_schedule: Schedule) -> None:
    model, (x,) = build()
    with pytest.warns(UserWarning, match="where the engine 'compiled' executes it; here, by 'eager'"):
        apply(model, compiled_schedule)(x)


def test_another_plan_has_no_predicted_peak(compiled_schedule: Schedule) -> None:
    assert compiled_schedule.solve.compiled is not None
    edited = replace(
        compiled_schedule,
        program=tuple(replace(instance, plan="baseline") for instance in compiled_schedule.program),
        statements=(),
    )
    result = refreshed(edited)
    assert result.schedule.solve.compiled == Compiled(compiled_schedule.solve.compiled.budget)
    assert any("--engine compiled" in remark for remark in result.remarks)


@pytest.mark.slow
def test_replanned_and_rebound_it_is_requested_the_same(compiled_schedule: Schedule) -> None:
    model, args = build()
    step = prepare_again(compiled_schedule, model, args, options=PlanOptions(cache=False))
    again, _ = replan(compiled_schedule, step)
    assert compiled_schedule.solve.compiled is not None
    assert again.solve.compiled is not None
    assert again.solve.cost == "compiled"
    assert again.solve.settings == compiled_schedule.solve.settings
    assert again.solve.compiled.budget == compiled_schedule.solve.compiled.budget
    carried = rebind(compiled_schedule, step).schedule
    assert carried.solve.compiled is not None
    assert carried.solve.compiled.budget == compiled_schedule.solve.compiled.budget
    assert carried.solve.budget == compiled_schedule.solve.budget


def test_where_nothing_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "remate_runtime.engine.compiled.prediction.unavailable", lambda kind: "torch finds no C++ compiler"
    )
    model, args = build()
    with pytest.raises(EngineError, match="torch finds no C\\+\\+ compiler"):
        planned(model, args)


def test_parts_are_not_planned_so() -> None:
    model, args = build()
    with pytest.raises(ProfileError, match="only whole models"):
        remate.plan(model, args, budget="70%", cost="compiled", at="0")


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_the_budget_is_kept_where_it_is_compiled() -> None:
    model, (x,) = build(2)
    schedule = planned(model, (x,), effort="quick")
    requested = schedule.solve.compiled
    assert requested is not None
    assert requested.peak is not None
    assert requested.peak <= requested.budget
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied: Any = apply(model, schedule, engine="compiled")
        assert predicted_peak(applied) == requested.peak
    applied(x).square().mean().backward()
    results = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), results, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
