"""Limits of products of sizes: budgets, files and calls count sizes within them only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import remate
import remate_runtime
from remate.cli import main
from remate.cli.dims import dims_of
from remate.dims.again import requested_again
from remate.errors import DimsError
from remate.schedule_tools.sizes import corner_sizes, evaluated, over_range
from remate_runtime.errors import BindError
from remate_runtime.format import checked_size, largest_sizes, load

from .models import Attention
from .test_plan_dims import assert_trains, tokens, trained

DIMS: dict[str, Any] = {"tokens": {0: "b=2..16", 1: "t=4..64"}, "b*t": 128}
LARGEST = [{"b": 16, "t": 8}, {"b": 2, "t": 64}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a budget in bytes."""
    path = tmp_path_factory.mktemp("limits") / "limits.json"
    remate.plan(Attention(), tokens(4, 16), budget=440_000, dims=DIMS, cost="cpu").save(str(path))
    return path


@pytest.mark.slow
def test_a_budget_in_bytes_holds_within_the_limit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = load(file)
    assert schedule.model.limits == {"b*t": 128}
    assert list(largest_sizes(schedule.model.dims, schedule.model.limits)) == LARGEST
    peaks = {size["t"]: evaluated(schedule, size).baseline for size in LARGEST}
    planned = {name: dim.planned for name, dim in schedule.model.dims.items()}
    assert planned == max(LARGEST, key=lambda size: peaks[size["t"]]) == {"b": 2, "t": 64}
    assert all(size["b"] * size["t"] <= 128 for size in corner_sizes(schedule.model))
    assert over_range(schedule).everywhere
    assert main(["show", str(file)]) == 0
    assert "b*t up to 128" in capsys.readouterr().out
    for b, t in ((2, 64), (16, 8), (5, 7)):
        assert_trains(Attention(), schedule, {"b": b, "t": t}, tokens(b, t))


@pytest.mark.slow
def test_the_largest_sizes_beyond_the_budget_are_within_the_limit() -> None:
    schedule = remate.plan(Attention(), tokens(4, 16), budget="90%", dims=DIMS, cost="cpu")
    budgeted = over_range(schedule)
    assert not budgeted.everywhere
    assert all(size.dims["b"] * size.dims["t"] <= 128 for size in budgeted.largest)


@pytest.mark.slow
def test_a_call_beyond_the_limit_is_one_outside_the_range(file: Path) -> None:
    model = Attention()
    applied = remate_runtime.apply(model, file)
    with pytest.raises(BindError, match=r"b=16, t=64: b\*t is 1024, the schedule is for up to 128") as refused:
        applied(*tokens(16, 64))
    call = str(refused.value).rpartition("for this call: ")[2]
    wider = eval(call, {"remate": remate, "torch": torch, "model": model})  # as a user pastes it
    assert wider.model.limits == {"b*t": 1024}
    remate_runtime.apply(model, wider)(*tokens(16, 64)).backward()
    original = remate_runtime.apply(Attention(), file, otherwise="original")
    with pytest.warns(UserWarning, match=r"b\*t is 1024"):
        original(*tokens(16, 64))
    with pytest.raises(BindError, match="up to 128"):
        checked_size(load(file).model, {"b": 16})


@pytest.mark.slow
def test_a_limit_is_requested_again_and_refused_with_a_reason(file: Path) -> None:
    assert requested_again(load(file), ["tokens"]) == DIMS
    assert dims_of(["tokens=b,t", "b=2..16", "t=4..64", "b*t <= 128"]) == DIMS
    for limit, reason in (
        ({"b*t": 63}, "is 64 in the example, over its limit of 63"),
        ({"b*s": 128}, "names the size 's', which no axis has"),
        ({"t-b": 128}, "is limited to 128"),
        ({"b t": 128}, "is no argument and no product of sizes"),
    ):
        with pytest.raises(DimsError, match=reason):
            remate.plan(Attention(), tokens(4, 16), budget="90%", dims={"tokens": DIMS["tokens"], **limit})


@pytest.mark.slow
def test_fit_counts_sizes_within_the_limit() -> None:
    """Within the limit the largest batch is free; the corner of all maxima would not fit."""
    whole = {"tokens": DIMS["tokens"]}
    options: dict[str, Any] = {"device_memory": 500_000, "optimizer": "sgd", "cost": "cpu"}
    limited = remate.fit(Attention(), tokens(4, 16), dims=DIMS, **options)
    assert limited.schedule.model.dims["b"].max == 16
    assert remate.fit(Attention(), tokens(4, 16), dims=whole, **options).schedule.model.dims["b"].max < 16
    assert trained(remate_runtime.apply(Attention(), limited.schedule), tokens(16, 8))
