"""Weight offloading: within the budget with parameters counted, never below what no choice can reach, and what the file
says is what trains."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.errors import InfeasibleError
from remate.schedule_tools.analysis import analyse
from remate.schedule_tools.figures import bounded, gap
from remate.step_measurement.allocator import peak_bytes
from remate.strategy import Request, StepInstance
from remate.strategy.paging import offloaded
from remate.strategy.paging.weights import pages_of, weighted_step
from remate_runtime import apply
from remate_runtime.flat_step import Graph, expand
from remate_runtime.format import Lane, Page, Schedule, encode
from remate_runtime.link import link, parameter_bytes, simulate

LANE = {"disk": Lane(out=2_000_000_000, back=2_000_000_000, latency=1_000)}


class Wide(nn.Module):
    """A model whose step consists mostly of parameters and gradients."""

    def __init__(self, layers: int = 6, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.last = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(torch.tanh(self.last(x))).pow(2).mean()


def planned_file(model: nn.Module, x: torch.Tensor, budget: str, **options: Any) -> Schedule:
    given: Any = {"strategy": "weight-offloading", "disk_budget": "1GiB", "bandwidth": "2GB/s", **options}
    schedule = remate.plan(model, (x,), {}, budget, "cpu", progress=None, **given)
    assert isinstance(schedule, Schedule)
    return schedule


def graph_of(layers: int, width: int = 128, **options: Any) -> Graph:
    step = prepared(Wide(layers, width), torch.randn(4, width), **options)
    return replace(step, lanes={**step.lanes, **LANE})


def prepared(model: nn.Module, x: torch.Tensor, **options: Any) -> Graph:
    schedule = remate.plan(model, (x,), {}, "100%", "cpu", progress=None, effort="quick", **options)
    assert isinstance(schedule, Schedule)
    return expand(schedule).graph


@pytest.mark.quick("retained")
@pytest.mark.parametrize("gradients", ["retained", "accumulated", "consumed"])
def test_every_budget_is_kept_down_to_the_smallest(gradients: str) -> None:
    graph = graph_of(5, 512, gradients=gradients)  # each weight is delivered on its own
    instance = StepInstance(graph)
    whole = instance.baseline.peak + parameter_bytes(graph)
    with pytest.raises(InfeasibleError) as caught:
        offloaded(instance, Request(1), "disk", 1 << 30)
    smallest = caught.value.smallest
    assert smallest < parameter_bytes(graph) < whole
    last = None
    for budget in (smallest, *(smallest + (whole - smallest) * part // 6 for part in range(1, 6))):
        proposal = offloaded(instance, Request(budget), "disk", 1 << 30)
        linked = link(graph, (), proposal.pages)
        timeline = simulate(linked)
        assert linked.parameters_paged
        assert (timeline.peak, timeline.time) == (proposal.peak, proposal.time)
        assert timeline.peak <= budget
        last = proposal
    assert last is not None
    assert last.time < offloaded(instance, Request(smallest), "disk", 1 << 30).time
    kept = offloaded(instance, Request(whole), "disk", 1 << 30)
    assert not kept.pages
    assert kept.time == instance.baseline.time


@pytest.mark.quick("0.4")
@pytest.mark.parametrize("share", [0.4, 0.55, 0.7])
def test_it_is_near_the_best_of_all_choices(share: float) -> None:
    """All subsets of what could be away, placed as the strategy places them."""
    graph = graph_of(2)
    step, instance = weighted_step(graph, "disk"), StepInstance(graph)
    big = [absence for absence in step.absences if absence.nbytes > 1024]
    assert len(big) <= 12
    budget, best = int(share * (instance.baseline.peak + parameter_bytes(graph))), None
    for size in range(len(big) + 1):
        for chosen in itertools.combinations(big, size):
            pages = pages_of(step, chosen, budget)
            if pages is None:
                continue
            linked = link(graph, (), pages)
            timeline = simulate(linked)
            if linked.parameters_paged and timeline.peak <= budget:
                best = timeline.time if best is None else min(best, timeline.time)
    try:
        proposal = offloaded(instance, Request(budget), "disk", 1 << 30)
    except InfeasibleError:
        assert best is None
        return
    assert best is not None
    assert proposal.time - instance.baseline.time <= 1.15 * (best - instance.baseline.time)
    assert instance.baseline.time < proposal.lower_bound <= best
    assert proposal.gap == (proposal.time - proposal.lower_bound) / instance.baseline.time


def test_a_budget_below_every_choice_is_refused() -> None:
    graph = graph_of(1, gradients="consumed")
    with pytest.raises(InfeasibleError):
        offloaded(StepInstance(graph), Request(1), "disk", 1 << 30)


def test_a_bound_is_of_files_that_page_parameters_and_gradients_only() -> None:
    schedule = planned_file(Wide(), torch.randn(8, 128), "50%")
    opened = analyse(schedule)
    assert schedule.solve.lower_bound is not None
    assert schedule.solve.gap == pytest.approx(gap(opened), abs=1e-6)
    assert bounded(opened)
    other = Page(("layers_0~last.tanh",))
    assert not bounded(analyse(replace(schedule, statements=(*schedule.statements, other))))
    assert not bounded(analyse(replace(schedule, statements=())))


def test_a_file_trains_within_its_budget() -> None:
    """Less than the parameters take; a plain loop; a second plan gives the same bytes."""
    model, x = Wide(), torch.randn(8, 128)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    schedule = planned_file(model, x, f"{nbytes * 3 // 5}B")
    assert schedule.peak_bytes <= nbytes * 3 // 5
    assert encode(planned_file(model, x, f"{nbytes * 3 // 5}B")) == encode(schedule)
    eager = copy.deepcopy(model)
    planned = apply(model, schedule)
    for trained in (planned, eager):
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            trained(x).backward()
            optimizer.step()
    for trained, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(trained, other)
        assert trained.grad is not None
        assert other.grad is not None
        assert torch.equal(trained.grad, other.grad)
    model.zero_grad()
    assert peak_bytes(lambda: planned(x).backward()) <= schedule.peak_bytes


def test_a_share_is_of_the_baseline_with_parameters() -> None:
    model, x = Wide(), torch.randn(8, 128)
    schedule = planned_file(model, x, "50%")
    counted = sum(parameter.nbytes for parameter in model.parameters())
    assert schedule.solve.budget == (schedule.baseline_peak_bytes + counted) // 2


def test_the_files_have_a_limit() -> None:
    model, x = Wide(), torch.randn(8, 128)
    with pytest.raises(InfeasibleError):
        planned_file(model, x, "40%", disk_budget="64KiB")
