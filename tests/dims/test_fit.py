"""The largest batch for a device. Each size has the time and memory of a plan for that size alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remate
from remate.api import fit_search
from remate.api.fit import Fit
from remate.cli import main
from remate.cli.fit import summary
from remate.errors import DimsError, DoesNotFitError, InfeasibleError, RemateError, UnknownNameError
from remate.schedule_tools.device_memory import residents
from remate.schedule_tools.sizes import over_range
from remate.strategy import Candidate, StepInstance
from remate_runtime.format import GRADIENTS, at_size, load

MEMORY = 2 << 20


def on(**changes: Any) -> dict[str, Any]:
    return {"device_memory": MEMORY, "optimizer": "adamw", "effort": "quick", "cost": "cpu"} | changes


SOURCE = """
import torch
from tests.dims.test_fit import Wide

def build():
    return Wide(), (torch.randn(8, 16),)

def alone():
    return Wide(), (torch.randn(1, 16),)
"""


class Wide(nn.Module):
    """Large intermediate values from a small input that are cheap to recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.ModuleList(nn.Linear(16, 256) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(256, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, narrow in zip(self.widen, self.narrow, strict=True):
            x = x + narrow(wide(x).tanh().pow(2))
        return x.pow(2).mean()


@pytest.fixture(scope="module")
def fitted() -> Fit:
    torch.manual_seed(0)
    return remate.fit(Wide(), (torch.randn(8, 16),), **on(cost="h200"))


@pytest.mark.slow
def test_the_largest_fits_beside_what_stays_on_the_device(fitted: Fit) -> None:
    schedule, largest = fitted.schedule, fitted.largest
    dim = schedule.model.dims["b"]
    assert (fitted.dim, dim.min, dim.max, dim.planned) == ("b", 2, largest.size, largest.size)
    there = at_size(schedule, {"b": largest.size})
    stays = sum(resident.nbytes for resident in residents(there.model, "adamw"))
    assert largest.peak is not None
    assert stays + largest.peak <= MEMORY
    assert stays + largest.left == MEMORY == stays + schedule.solve.budget
    assert largest.recomputes > 0
    assert not largest.keeps_all
    assert over_range(schedule).everywhere


def test_nothing_much_larger_fits(fitted: Fit) -> None:
    size = fitted.largest.size * 66 // 64 + 1
    with pytest.raises(InfeasibleError):
        remate.plan(Wide(), (torch.randn(size, 16),), budget=fitted.largest.left, cost="h200", effort="quick")


def test_each_size_is_what_a_plan_for_it_alone_says(fitted: Fit) -> None:
    assert [batch.size for batch in fitted.batches] == sorted({batch.size for batch in fitted.batches})
    kept = [batch for batch in fitted.batches if batch.keeps_all]
    recompute = [batch for batch in fitted.batches if not batch.keeps_all]
    assert len(kept) > 2
    assert len(recompute) > 2
    for batch in (kept[0], kept[-1], recompute[0]):
        alone = remate.plan(
            Wide(), (torch.randn(batch.size, 16),), budget=batch.left, cost="h200", effort="quick"
        ).solve
        assert (batch.baseline_peak, batch.baseline_time) == (alone.baseline_peak, alone.baseline_time)
        assert batch.time == alone.time
    assert all(batch.recomputes == 0 and batch.time == batch.baseline_time for batch in kept)
    assert fitted.fastest.per_second == max(batch.per_second for batch in fitted.batches)


def test_an_end_that_was_requested_for_is_the_largest() -> None:
    model = Wide()
    few = remate.fit(
        model, (torch.randn(4, 16),), dims={"x": {0: "rows=4..24/4"}}, **on(device_memory="1GiB", optimizer="sgd")
    )
    assert (few.dim, few.largest.size) == ("rows", 24)
    assert all(batch.size % 4 == 0 for batch in few.batches)
    assert few.schedule.model.dims["rows"].multiple == 4


class Scaled(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.alpha * super().forward(x)


@pytest.mark.slow
def test_gradients_that_are_accumulated_and_attributes_that_change() -> None:
    dims = {"x": {0: "rows=4..16/4"}}
    options = on(gradients="accumulated", live=["alpha"], optimizer="sgd")
    schedule = remate.fit(Scaled(), (torch.randn(4, 16),), dims=dims, **options).schedule
    model, solve = at_size(schedule, {"rows": schedule.model.dims["rows"].max}).model, schedule.solve
    assert (list(model.live), solve.gradients) == (["alpha"], "accumulated")
    assert solve.settings is not None
    assert solve.settings.live == ("alpha",)
    stays = {kind: sum(resident.nbytes for resident in residents(model, "sgd", None, kind)) for kind in GRADIENTS}
    assert solve.budget == MEMORY - stays["accumulated"] < MEMORY - stays["retained"]
    with pytest.raises(UnknownNameError, match="gradients='kept' is unknown"):
        remate.fit(Scaled(), (torch.randn(4, 16),), dims=dims, **on(gradients="kept"))


@pytest.mark.slow
def test_refusals() -> None:
    full = r"even at b=2: the device is full before the step begins\n  on it stay: parameters .*\n  hint: a device of at least \d+ "
    with pytest.raises(DoesNotFitError, match=full) as caught:
        remate.fit(Wide(), (torch.randn(8, 16),), **on(device_memory=10_000))
    least = re.findall(r"at least (\d+) bytes", str(caught.value))[-1]
    with pytest.raises(DoesNotFitError, match=r"even at b=2: the device has .* left for the step"):
        remate.fit(Wide(), (torch.randn(8, 16),), **on(device_memory=int(least) - 1))
    assert remate.fit(Wide(), (torch.randn(8, 16),), **on(device_memory=int(least))).largest.size >= 2
    with pytest.raises(DimsError, match="no size of the example can be varied"):
        remate.fit(Wide(), (torch.randn(1, 16),), **on())
    with pytest.raises(UnknownNameError, match="adammw"):
        remate.fit(Wide(), (torch.randn(8, 16),), **on(optimizer="adammw"))
    with pytest.raises(RemateError, match="memory of a device"):
        remate.fit(Wide(), (torch.randn(8, 16),), **on(device_memory="50%"))


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    out, plot = tmp_path / "s.json", tmp_path / "fit.svg"
    argv = ["fit", f"{tmp_path}/model.py:build", "--device-memory", "2MiB", "--optimizer", "adamw", "--cost", "h200"]
    argv += ["--gradients", "consumed"]
    assert main([*argv, "--effort", "quick", "-o", str(out), "--plot", str(plot)]) == 0
    assert load(str(out)).solve.gradients == "consumed"
    told = capsys.readouterr().out
    largest = load(str(out)).model.dims["b"].max
    assert f"the largest batch that fits 2.00 MiB is b={largest}" in told
    assert f"wrote {out}" in told
    assert "with recomputation" in plot.read_text()
    assert plot.read_text().startswith("<?xml")
    plot.write_text("mine")
    assert main([*argv, "--plot", str(plot)]) == 2
    assert main([f"{word}".replace(":build", ":alone") for word in argv]) == 1
    assert "no size of the example can be varied" in capsys.readouterr().err
    assert main([word for word in argv if word not in ("--optimizer", "adamw")]) == 2
    assert "--device-memory needs the optimizer" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the largest size is searched: the largest one known to fit is planned; in the table: rows so far."""
    torch.manual_seed(0)
    pressed: list[str] = []
    solved = fit_search.Search._solved

    def interrupted(self: fit_search.Search, instance: StepInstance, left: int) -> Candidate | None:
        pressed.append("")
        if len(pressed) > 1:
            raise KeyboardInterrupt
        return solved(self, instance, left)

    monkeypatch.setattr(fit_search.Search, "_solved", interrupted)
    found = remate.fit(Wide(), (torch.randn(8, 16),), **on(cost="h200"))
    assert not found.complete
    assert found.largest.peak is not None
    assert found.largest.peak <= found.largest.left
    assert len(found.batches) == 1
    assert "the search ended early" in summary(found)


@pytest.mark.slow
def test_a_time_limit_ends_the_search_with_a_schedule() -> None:
    torch.manual_seed(0)
    found = remate.fit(Wide(), (torch.randn(8, 16),), **on(cost="h200", time_limit=1e-6))
    assert not found.complete
    assert found.schedule.peak_bytes <= found.schedule.budget_bytes
    assert found.schedule.solve.settings is not None
    assert found.schedule.solve.settings.time_limit == 1e-6


@pytest.mark.slow
def test_most_sizes_need_no_solve(fitted: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans for one size are tried at the others first; the result is that of a solve for each size. No size is captured
    twice."""
    torch.manual_seed(0)
    solves: list[int] = []
    said: list[str] = []
    solved = fit_search.solve
    monkeypatch.setattr(fit_search, "solve", lambda *args, **options: solves.append(0) or solved(*args, **options))
    found = remate.fit(Wide(), (torch.randn(8, 16),), **on(cost="h200", progress=said.append))
    assert found == fitted
    assert found.complete
    assert len(solves) <= len(found.batches) + 4
    captures = [text for text in said if text.startswith("tracing")]
    assert len(captures) == len(set(captures))
