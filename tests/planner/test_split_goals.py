"""Splits with goals, many budgets, and open sizes, on a loss head alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remate
from remate.api.plan import prepare
from remate.strategy import StepInstance
from remate_runtime import apply
from remate_runtime.format import Schedule

from .test_plan_split import WORDS, WithLoss, splits

pytestmark = pytest.mark.eager
ROWS, WIDTH = 32, 8


def head(width: int = WIDTH) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    args = torch.randn(ROWS, width), torch.randint(0, WORDS, (ROWS,))
    return WithLoss(nn.Linear(width, WORDS), F.cross_entropy), args


@pytest.mark.slow("goal0")
@pytest.mark.parametrize("goal", [{"budget": "min"}, {"slowdown": 4}])
def test_a_goal_is_met_with_fewer_bytes_in_tiles(goal: dict[str, Any]) -> None:
    model, args = head(64)
    step = prepare(model, args, cost="cpu")
    floor = StepInstance(step.captured.graph, step.parts).floor
    schedule = remate.plan(model, args, cost="cpu", effort="quick", split="head", progress=None, **goal)
    assert isinstance(schedule, Schedule)
    assert schedule.peak_bytes < floor
    assert "slowdown" not in goal or schedule.solve.time <= 5 * schedule.solve.baseline_time


def test_each_budget_of_a_frontier_gets_its_number_of_tiles() -> None:
    model, args = head()
    budgets: dict[str, Any] = {"budgets": ["100%", "60%", "40%"], "split": "head", "progress": None}
    schedules = remate.frontier(model, args, cost="cpu", effort="quick", **budgets)
    assert [[split.into for split in splits(schedule)] for schedule in schedules] == [[4], [2], []]
    for schedule in schedules:
        assert schedule.solve.peak <= schedule.solve.budget


@pytest.mark.slow
def test_a_range_begins_where_there_is_a_row_for_every_tile() -> None:
    """Unless the caller requested its begin: then there are no more tiles than rows."""
    model, args = head()
    for begin, least in (("", 4), ("=3..64", 3)):
        dims = {"x": {0: f"b{begin}"}, "y": {0: "b"}}
        options: dict[str, Any] = {"dims": dims, "split": "head", "progress": None}
        schedule = remate.plan(model, args, budget="min", cost="cpu", effort="quick", **options)
        assert isinstance(schedule, Schedule)
        assert (schedule.model.dims["b"].min, [split.into for split in splits(schedule)]) == (least, [least])


@pytest.mark.slow
def test_the_largest_batch_is_larger_in_tiles() -> None:
    model, args = head()
    dims = {"x": {0: "b=4..256"}, "y": {0: "b"}}
    options: dict[str, Any] = {"dims": dims, "device_memory": "300KiB", "optimizer": "sgd", "cost": "cpu"}
    whole, tiled = (
        remate.fit(model, args, split=split, effort="quick", progress=None, **options) for split in (None, "head")
    )
    assert tiled.largest.size > 2 * whole.largest.size
    assert splits(tiled.schedule)
    assert tiled.schedule.model.dims["b"].max == tiled.largest.size
    assert tiled.schedule.peak_bytes <= tiled.largest.left
    assert [batch.baseline_peak for batch in tiled.batches[:1]] == [batch.baseline_peak for batch in whole.batches[:1]]


@pytest.mark.slow
def test_a_split_step_is_planned_for_the_compiling_engine() -> None:
    model, args = head()
    schedule = remate.plan(model, args, budget="50%", cost="compiled", effort="quick", split="head", progress=None)
    assert isinstance(schedule, Schedule)
    assert splits(schedule)
    assert schedule.solve.compiled is not None
    applied = apply(model, schedule, engine="compiled", verify="never")
    torch.testing.assert_close(applied(*args), model(*args))
