"""Planning with pages: never slower than recomputing alone, within all budgets, and executed as the file says."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
import remate_runtime
from remate.api.dry_run import dry_run
from remate.api.elsewhere import on_device_of
from remate.api.paging import COUNTED_ON
from remate.budget import BudgetError, parse_speed
from remate.capture.recorded import RecordedCall
from remate.errors import InfeasibleError
from remate.profile.devices import DEVICES
from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.check import findings
from remate.step_measurement.allocator import peak_bytes
from remate.strategy import Request, StepInstance
from remate.strategy.effort import QUICK
from remate.strategy.paging import PagingLimits, page, paged_solution
from remate.strategy.paging.greedy import ORDERS
from remate.strategy.solve import Solution, solve
from remate_runtime import apply
from remate_runtime.flat_step import Graph
from remate_runtime.format import Lane, Page, PageMemory, Schedule, encode
from remate_runtime.link import link, simulate

from .folding import random_step
from .synthetic import layers

FAST = {"disk": Lane(out=50_000_000_000, back=50_000_000_000, latency=100), "host": Lane(out=10**12, back=10**12)}


class Deep(nn.Module):
    """A model whose step consists mostly of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x.pow(2).mean()


def planned_file(model: nn.Module, x: torch.Tensor, **options: Any) -> Schedule:
    given: Any = {"cost": "cpu", "effort": "quick", "progress": None, "budget": "60%", **options}
    schedule = remate.plan(model, (x,), **given)
    assert isinstance(schedule, Schedule)
    return schedule


def graph_of(seed: int) -> Graph:
    captured = layers(4) if seed % 2 else random_step(seed, 60)
    graph = captured.graph
    operations = tuple(op if op.ns else replace(op, ns=1000) for op in graph.operations)
    return replace(graph, operations=operations, lanes=FAST)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", ORDERS)
def test_pages_keep_the_budget_and_their_own(seed: int, order: Any) -> None:
    graph = graph_of(seed)
    base = simulate(link(graph))
    limits: dict[PageMemory, int] = {"disk": 1 << 12, "host": 1 << 11}
    for share in (0.95, 0.8, 0.6):
        result = page(graph, (), int(share * base.peak), limits, order)
        if result is None:
            continue
        timeline = simulate(link(graph, result.recomputes, result.pages))
        assert (timeline.peak, timeline.time) == (result.peak, result.time)
        assert timeline.peak <= share * base.peak
        assert all(timeline.paged.get(memory, 0) <= limit for memory, limit in limits.items())
        assert page(graph, (), int(share * base.peak), limits, order) == result


def judged(instance: StepInstance, plan: Callable[[], Solution], budget: int) -> Solution | None:
    """Return a solution if something fits. Its figures are the simulator's."""
    try:
        solution = plan()
    except InfeasibleError:
        return None
    timeline = simulate(link(instance.graph, solution.recomputes, solution.pages))
    assert (timeline.peak, timeline.time) == (solution.peak, solution.time)
    assert solution.peak <= budget
    return solution


@pytest.mark.slow
@pytest.mark.parametrize(("speed", "seed"), [(10**8, 1), (10**10, 0)])
def test_mixed_is_never_slower_than_recomputing_or_paging_alone(speed: int, seed: int) -> None:
    """Lanes from useless to free of cost, and no schedule beats the bound."""
    instance = StepInstance(replace(graph_of(seed), lanes={"disk": Lane(out=speed, back=speed)}))

    def recomputed() -> Solution:
        return solve(instance, request)

    def paged() -> Solution:
        return paged_solution(instance, request, PagingLimits({"disk": 1 << 30}, only=True))

    def both() -> Solution:
        return paged_solution(instance, request, PagingLimits({"disk": 1 << 30}, only=False))

    for share in (0.9, 0.75, 0.6):
        request = Request(int(share * instance.baseline.peak), effort=QUICK)
        plain, only, mixed = (judged(instance, plan, request.budget) for plan in (recomputed, paged, both))
        times = [solution.time for solution in (plain, only, mixed) if solution is not None]
        if mixed is None:
            assert not times
            continue
        assert mixed.time == min(times)
        assert max(mixed.lower_bound, 0 if only is None else only.lower_bound) <= mixed.time


def test_a_slow_lane_leaves_the_recomputations() -> None:
    graph = replace(graph_of(1), lanes={"disk": Lane(out=1, back=1)})
    instance = StepInstance(graph)
    request, told = Request(int(0.8 * instance.baseline.peak), effort=QUICK), list[str]()
    mixed = paged_solution(instance, request, PagingLimits({"disk": 1 << 30}, only=False), progress=told.append)
    assert not mixed.pages
    plain = solve(StepInstance(graph), request)
    assert (mixed.recomputes, mixed.time) == (plain.recomputes, plain.time)
    assert instance.baseline.time < mixed.lower_bound <= plain.lower_bound
    assert any("no pages" in line for line in told)


def test_a_plan_with_pages_trains_as_it_says() -> None:
    model, x = Deep(), torch.randn(512, 64)
    options = {"disk_budget": "1GiB", "bandwidth": "100GB/s"}
    schedule, plain = planned_file(model, x, **options), planned_file(model, x)
    only = planned_file(model, x, strategy="offload-only", **options)
    assert schedule.solve.time <= min(plain.solve.time, only.solve.time)
    assert all(isinstance(statement, Page) for statement in only.statements)
    assert all(instance.plan == "baseline" for instance in only.program)
    for result in (schedule, only):
        assert result.requires == ("page",)
        assert result.solve.lower_bound is not None
        assert result.solve.baseline_time <= result.solve.lower_bound <= result.solve.time
        assert result.solve.gap == pytest.approx(
            (result.solve.time - result.solve.lower_bound) / result.solve.baseline_time, abs=1e-6
        )
        assert not findings(analyse(result), encode(result).decode())
        assert result.lanes == {"disk": Lane(out=85_000_000_000, back=85_000_000_000, latency=100_000)}
        eager = copy.deepcopy(model)
        planned = apply(copy.deepcopy(model), result)

        def run(planned: nn.Module = planned) -> None:
            planned(x).backward()

        run()
        planned.zero_grad()
        gc.collect()
        assert peak_bytes(run) == remate_runtime.predicted_peak(planned) == result.solve.peak
        eager(x).backward()
        for ours, theirs in zip(planned.parameters(), eager.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.slow
def test_the_same_arguments_give_the_same_file() -> None:
    model, x = Deep(), torch.randn(512, 64)
    first, second = (encode(planned_file(model, x, disk_budget=1 << 30, bandwidth="2GB/s")) for _ in range(2))
    assert first == second
    assert b'"disk_budget": "1073741824", "bandwidth": "2GB/s"' in first


@pytest.mark.slow("options0")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"host_budget": "1GiB"}, "disk_budget"),
        ({"disk_budget": "60%"}, "in bytes"),
        ({"disk_budget": "1GiB", "bandwidth": "fast"}, "50GB/s"),
        ({"strategy": "mixed"}, "disk_budget"),
        ({"strategy": "offload-only"}, "disk_budget"),
        ({"disk_budget": "1GiB", "budget": "min"}, "do not support paging"),
        ({"disk_budget": "1GiB", "at": "layers.0"}, "do not support paging"),
    ],
)
def test_what_cannot_be_paged_is_refused(options: Any, reason: str) -> None:
    with pytest.raises(BudgetError, match=reason):
        planned_file(Deep(), torch.randn(8, 64), **options)


@pytest.mark.slow
def test_a_step_of_a_gpu_is_planned_with_pages_to_the_host() -> None:
    """The lane is that of the GPU's PCIe, and the runtime can run the file dry."""
    model, x = Deep(), torch.randn(512, 64)
    planned = planned_file(model, x, device="cuda:h100", cost="h100", host_budget="1GiB", strategy="offload-only")
    speed = int(COUNTED_ON * int(DEVICES["h100"].host))
    assert planned.lanes == {"host": Lane(out=speed, back=speed, latency=10_000)}
    assert 40e9 < speed < 50e9
    pages = [statement for statement in planned.statements if isinstance(statement, Page)]
    assert {page.to for page in pages} == {"host"}
    with on_device_of(planned, RecordedCall.of(model, (x,), {})) as there:
        result = dry_run(there, planned)
    assert result.peak == result.predicted <= planned.solve.peak


def test_slower_slots_have_slower_lanes() -> None:
    assert DEVICES["t4"].host < DEVICES["a100"].host < DEVICES["h100"].host == DEVICES["b200"].host < 64e9
    assert DEVICES["cpu"].host == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"disk_budget": "1GiB"}, "not to the disk\n.*host_budget"),
        ({"disk_budget": "1GiB", "host_budget": "1GiB"}, "not to the disk\n.*host_budget"),
        ({"host_budget": "1GiB", "strategy": "weight-offloading"}, "on the CPU only.*\n.*mixed"),
    ],
)
def test_what_a_gpu_cannot_page_is_refused(options: Any, reason: str) -> None:
    with pytest.raises(BudgetError, match=reason):
        planned_file(Deep(), torch.randn(8, 64), device="cuda:h100", cost="h100", **options)


@pytest.mark.slow
def test_pages_have_a_budget_by_default() -> None:
    model, x = Deep(), torch.randn(512, 64)
    planned = planned_file(model, x, disk_budget="1GiB", bandwidth="100GB/s", budget=None)
    assert planned == planned_file(model, x, disk_budget="1GiB", bandwidth="100GB/s", budget="60%")


def test_speeds() -> None:
    assert parse_speed("50GB/s") == 50_000_000_000
    assert parse_speed("2GiB/s") == 2 << 30
    for text in ("50GB", "60%", "50%/s", "/s", "0GB/s"):
        with pytest.raises(BudgetError):
            parse_speed(text)


@pytest.mark.slow
def test_a_file_is_planned_again_with_its_pages() -> None:
    from remate.api.replan import prepare_again, replan

    model, x = Deep(), torch.randn(512, 64)
    schedule = planned_file(model, x, disk_budget="1GiB", bandwidth="100GB/s")
    again, lost = replan(schedule, prepare_again(schedule, model, (x,)))
    assert encode(again) == encode(schedule)
    assert not lost
