"""Plans under each assumption of what becomes of gradients: budgets, floors and bounds are stated under it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.api.rebind import rebind
from remate.api.replan import prepare_again, replan
from remate.budget import parse_budget
from remate.errors import InfeasibleError, UnknownNameError
from remate.profile.costing import costed
from remate.schedule_tools.figures import refreshed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import Schedule, apply
from remate_runtime.flat_step import expand
from remate_runtime.format import GRADIENTS, Gradients
from remate_runtime.link import link, simulate
from tests.runtime.small import data, seeded
from tests.runtime.test_gradients_assumed import consume, prepare


class Heavy(nn.Module):
    """More bytes of parameters than of activations, though these are enough to be worth recomputations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(torch.nn.functional.gelu(layer(x)))
        return x.square().mean()


INPUT = data(128, 512)
BUDGETS = {"retained": "100%", "accumulated": "85%", "consumed": "85%"}  # gradients alone are the floor of the first


def planned(budget: str | int, gradients: str) -> Schedule:
    return remate.plan(seeded(Heavy()), (INPUT,), budget=budget, cost="cpu", gradients=gradients, effort="quick")


@pytest.fixture(scope="module")
def schedules() -> dict[Gradients, Schedule]:
    return {kind: planned(BUDGETS[kind], kind) for kind in GRADIENTS}


@pytest.mark.quick("accumulated")
@pytest.mark.parametrize("kind", GRADIENTS)
def test_budget_and_peaks_are_those_of_the_assumption(schedules: dict[Gradients, Schedule], kind: Gradients) -> None:
    schedule = schedules[kind]
    solve, model = schedule.solve, seeded(Heavy())
    assert solve.gradients == kind
    assert solve.budget == parse_budget(BUDGETS[kind]).resolve(solve.baseline_peak)
    assert solve.lower_bound is not None
    assert (kind == "retained") == (solve.baseline_time == solve.time)
    assert solve.time >= solve.lower_bound
    assert solve.peak <= solve.budget
    if kind == "consumed":
        consume(model)
    scheduled = apply(model, schedule)
    for _ in range(2):
        prepare(model, kind)
        measured = peak_bytes(lambda: scheduled(INPUT).backward())
    expanded = expand(schedule)  # with the workspaces of this machine
    assert measured == simulate(link(costed(expanded.graph, "measured"), expanded.recomputes)).peak <= solve.peak


def test_gradients_that_go_leave_room(schedules: dict[Gradients, Schedule]) -> None:
    held, accumulated, consumed = (schedules[kind].solve for kind in GRADIENTS)
    assert accumulated.baseline_peak == consumed.baseline_peak < 0.7 * held.baseline_peak
    assert accumulated.peak == consumed.peak < held.peak


def test_a_budget_below_the_floor_of_held_gradients(schedules: dict[Gradients, Schedule]) -> None:
    with pytest.raises(InfeasibleError) as refused:
        planned(schedules["consumed"].solve.budget, "retained")
    assert refused.value.floor > schedules["consumed"].solve.budget
    assert "if they may be accumulated in a .grad that exists, or consumed by an optimizer in backward" in str(
        refused.value
    )


def test_gradients_are_equal_when_added_up(schedules: dict[Gradients, Schedule]) -> None:
    model, eager = seeded(Heavy()), seeded(Heavy())
    scheduled = apply(model, schedules["accumulated"])
    for seed in range(3):  # the first of them makes `.grad`
        scheduled(data(128, 512, seed=seed)).backward()
        eager(data(128, 512, seed=seed)).backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_the_first_step_and_later_ones_take_no_more_than_peak_and_grad(schedules: dict[Gradients, Schedule]) -> None:
    """So a budget that leaves room for `.grad` holds while `.grad` is being made, too."""
    model = seeded(Heavy())
    scheduled = apply(model, schedules["accumulated"])
    grad = sum(p.numel() * p.element_size() for p in model.parameters())
    first = peak_bytes(lambda: scheduled(INPUT).backward())
    assert first <= schedules["accumulated"].solve.peak + grad
    assert first > schedules["accumulated"].solve.peak


@pytest.mark.quick("False")
@pytest.mark.parametrize("does", [False, True])
def test_an_optimizer_in_backward_that_is_missing_is_told_once(
    schedules: dict[Gradients, Schedule], does: bool
) -> None:
    model = seeded(Heavy())
    if does:
        consume(model)
    scheduled = apply(model, schedules["consumed"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model.zero_grad()
            scheduled(INPUT).backward()
    told = [str(warning.message) for warning in caught if "optimizer in backward" in str(warning.message)]
    assert len(told) == (not does)
    if told:
        held = refreshed(
            replace(schedules["consumed"], solve=replace(schedules["consumed"].solve, gradients="retained"))
        )
        assert f"takes {held.schedule.solve.peak:,} bytes" in told[0]


def test_no_word_where_the_budget_holds_without_it(schedules: dict[Gradients, Schedule]) -> None:
    schedule = schedules["consumed"]
    scheduled = apply(seeded(Heavy()), replace(schedule, solve=replace(schedule.solve, budget=1 << 40)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduled(INPUT).backward()


@pytest.mark.quick("rebind")
@pytest.mark.parametrize("again", [replan, rebind])
def test_planning_again_keeps_the_assumption(schedules: dict[Gradients, Schedule], again: Callable) -> None:
    schedule = schedules["consumed"]
    planned_schedule = again(schedule, prepare_again(schedule, seeded(Heavy()), (INPUT,)))
    planned_schedule = planned_schedule[0] if isinstance(planned_schedule, tuple) else planned_schedule.schedule
    assert planned_schedule.solve.gradients == "consumed"
    assert (planned_schedule.solve.budget, planned_schedule.solve.peak) == (schedule.solve.budget, schedule.solve.peak)


@pytest.mark.slow
def test_frontier_takes_it() -> None:
    (schedule,) = remate.frontier(
        seeded(Heavy()), (INPUT,), budgets=("85%",), cost="cpu", gradients="accumulated", effort="quick"
    )
    assert schedule.solve.gradients == "accumulated"
    assert schedule.solve.peak <= schedule.solve.budget == int(0.85 * schedule.solve.baseline_peak)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="one of retained, accumulated, consumed"):
        planned("85%", "freed")
