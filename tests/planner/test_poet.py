"""POET: energy and time by recomputation and paging together, judged by definition and by the simulator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.budget import BudgetError
from remate.errors import InfeasibleError, InstanceError, UnknownNameError
from remate.profile.power import POWER
from remate.standalone_graphs import BareInstance, BareNode, decode_result, verify
from remate_runtime import apply
from remate_runtime.format import Page, Schedule

MB = 1_000_000


def chain(forward: list[int], nbytes: int = MB) -> BareInstance:
    """A chain of forward nodes of these times, each read again by its backward node. Times are in ns."""
    n = len(forward)
    nodes = [BareNode(f"f{i}", time, (nbytes,)) for i, time in enumerate(forward)]
    nodes += [BareNode(f"b{i}", 2 * forward[i], (nbytes,), recomputable=False) for i in reversed(range(n))]
    edges = [(f"f{i}", f"f{i + 1}") for i in range(n - 1)] + [(f"f{i}", f"b{i}") for i in range(n)]
    edges += [(f"f{i - 1}", f"b{i}") for i in range(1, n)] + [(f"b{i + 1}", f"b{i}") for i in range(n - 1)]
    return BareInstance("remate.instance", 1, tuple(nodes), tuple(edges), "chain", (), f"b{n - 1}")


def poet(bare: BareInstance, budget: str, **options: Any) -> Any:
    given = {"objective": "energy", "power": "a72", **options}
    return remate.solve(bare, budget, "poet", progress=None, **given)


def test_the_figures_of_a_device_are_those_of_poet() -> None:
    a72, m4 = POWER["a72"], POWER["m4"]
    assert a72.joules(450_560, 0) == pytest.approx(0.022462974144813606, rel=1e-9)  # its first convolution for CIFAR
    assert a72.joules(0, a72.storage.back_ns(12_288)) == pytest.approx(4.127423160989011e-05, rel=1e-5)
    assert a72.joules(0, a72.storage.out_ns(12_288)) == pytest.approx(7.801236306122449e-05, rel=1e-5)
    assert m4.joules(0, m4.storage.back_ns(65_536)) == pytest.approx(0.004720651718440987, rel=1e-12)
    assert m4.joules(0, m4.storage.out_ns(65_536)) == pytest.approx(0.004908208918918919, rel=1e-12)


def test_expensive_values_are_paged_and_cheap_ones_recomputed() -> None:
    """A copy out and back of 1 MB takes 0.0095 J, as 190 us of computing."""
    slow, fast = 10**9, 1000
    result = poet(chain([slow, slow, slow, slow, slow, slow]), "70%")
    assert result.pages
    assert len(result.sequence) == 12
    assert result.stopped_by == "optimal"
    result = poet(chain([fast] * 6), "70%")
    assert not result.pages
    assert len(result.sequence) > 12
    mixed = poet(chain([slow, fast, slow, fast, slow, fast, slow]), "65%")
    assert {page.output for page in mixed.pages} <= {"f0", "f2", "f4", "f6"}
    assert mixed.pages
    assert set(mixed.sequence[:-1]) & {"f1", "f3", "f5"}


@pytest.mark.slow
def test_each_objective_is_best_in_its_own_figure_and_keeps_the_limit_of_the_other() -> None:
    """Copies count no time, so least time pages all. A limit of energy makes it recompute."""
    bare = chain([150_000] * 8)  # a recomputation takes less energy than a page
    energy, time = poet(bare, "60%"), poet(bare, "60%", objective="time")
    assert energy.energy < time.energy
    assert time.time < energy.time
    limited = poet(bare, "60%", limit=1.0 + (energy.time / energy.baseline_time - 1.0) / 2)
    assert limited.time <= (energy.time + limited.baseline_time) / 2
    assert energy.energy < limited.energy <= time.energy
    base = POWER["a72"].joules(bare_time(bare), 0)
    thrifty = poet(bare, "60%", objective="time", limit=(energy.energy + time.energy) / 2 / base)
    assert thrifty.energy <= (energy.energy + time.energy) / 2
    assert time.time < thrifty.time <= energy.time


def bare_time(bare: BareInstance) -> int:
    return sum(node.time for node in bare.nodes)


def test_storage_has_a_limit() -> None:
    bare = chain([10**9] * 6)
    free = poet(bare, "70%")
    limited = poet(bare, "70%", disk_budget=MB * (len(free.pages) - 1))
    assert len(limited.pages) == len(free.pages) - 1
    assert limited.energy > free.energy
    with pytest.raises(InfeasibleError):
        poet(chain([10**9] * 6), "20%")


def test_a_result_is_checked_by_definition() -> None:
    bare = chain([10**9] * 6)
    result = poet(bare, "70%")
    verify(remate.standalone_graphs.read(_written(bare)), decode_result(result.encode()))
    with pytest.raises(InstanceError, match="energy is"):
        verify(remate.standalone_graphs.read(_written(bare)), replace(result, energy=result.energy * 0.99))
    page = result.pages[0]
    for wrong in (replace(page, gone=0), replace(page, back=len(result.sequence)), replace(page, back=page.back + 1)):
        with pytest.raises(InstanceError, match=r"storage|memory"):
            verify(remate.standalone_graphs.read(_written(bare)), replace(result, pages=(wrong, *result.pages[1:])))
    with pytest.raises(InstanceError, match="twice"):
        verify(remate.standalone_graphs.read(_written(bare)), replace(result, pages=(page, *result.pages)))


def _written(bare: BareInstance) -> Path:
    path = Path("chain.json").resolve()
    path.write_bytes(remate.standalone_graphs.encode(bare))
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_step_that_is_too_large_gets_a_schedule_without_a_proof() -> None:
    told: list[str] = []
    result = remate.solve(
        chain([1000 + 37 * i for i in range(60)]),
        "60%",
        "poet",
        objective="energy",
        power="a72",
        effort="quick",
        progress=told.append,
    )
    assert result.stopped_by == "heuristic"
    assert any("without a proof" in line for line in told)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"objective": "energy"}, UnknownNameError, "power='a72'"),
        ({"objective": "joy", "power": "a72"}, UnknownNameError, "one of time, energy"),
        ({"power": "a73"}, UnknownNameError, "one of a72, m4, m0"),
        ({"power": "a72", "limit": 0.5}, BudgetError, "at least 1"),
        ({"strategy": "auto", "power": "a72"}, UnknownNameError, "belong to the strategy poet"),
        ({"strategy": "flat", "limit": 1.5}, UnknownNameError, "belong to the strategy poet"),
    ],
)
def test_arguments_that_do_not_go_together(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        remate.solve(chain([5, 5]), "90%", **{"strategy": "poet", **options})
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    given: Any = {"strategy": "poet", "disk_budget": "1MiB", **options}
    with pytest.raises(error, match=message):
        remate.plan(model, (x,), budget="90%", cost="cpu", progress=None, **given)


def test_a_model_planned_for_energy_trains_bitwise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))))
    x = torch.randn(64, 16)
    schedule = remate.plan(
        model,
        (x,),
        budget="70%",
        cost="a72",
        strategy="poet",
        objective="energy",
        power="a72",
        limit=1000,
        disk_budget="64MiB",
        progress=None,
    )
    assert isinstance(schedule, Schedule)
    assert schedule.peak_bytes <= 0.7 * schedule.baseline_peak_bytes
    assert schedule.solve.lower_bound is not None
    assert schedule.solve.baseline_time < schedule.solve.lower_bound <= schedule.solve.time
    settings = schedule.solve.settings
    assert settings is not None
    assert (settings.objective, settings.power, settings.limit) == ("energy", "a72", 1000.0)
    statements = [s for block in schedule.blocks.values() for plan in block.plans.values() for s in plan]
    assert any(isinstance(s, Page) for s in [*statements, *schedule.statements])
    eager = copy.deepcopy(model)
    eager(x).sum().backward()
    apply(model, schedule)(x).sum().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
