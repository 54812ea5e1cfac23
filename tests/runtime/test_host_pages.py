"""Pages to pinned memory, executed on the CPU with copies that are delayed as long as a GPU may delay them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from remate.profile.bandwidth import measured_host_lane
from remate_runtime import apply
from remate_runtime.engine.eager import host_pages
from remate_runtime.engine.eager.host_pages import HostPages, _chunks, _parts
from remate_runtime.engine.eager.page_copies import Place
from remate_runtime.errors import EngineError
from remate_runtime.flat_step.expansion import expand
from remate_runtime.format.schedule import Page, Schedule

from . import host_paging as checks
from .host_lanes import Current, DelayedLanes, Lane
from .stepping import assert_same, just_in_time, no_recomputes, schedule_of, step
from .test_pages import edits

pytestmark = pytest.mark.eager


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DelayedLanes]]:
    """The lanes of each step. At the end, nothing has gone wrong."""
    collected: list[DelayedLanes] = []

    def of(device: torch.device) -> DelayedLanes:
        collected.append(DelayedLanes(device))
        return collected[-1]

    monkeypatch.setitem(host_pages.HOST_LANES, "cpu", of)
    yield collected
    assert faults(collected) == []


def faults(collected: list[DelayedLanes]) -> list[str]:
    for one in collected:
        one.finish()
    return [fault for one in collected for fault in one.faults]


@pytest.mark.quick("strided-just_in_time-True")
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
@pytest.mark.parametrize("name", list(checks.MODELS))
def test_steps_equal_eager(name, recomputes, points, lanes):
    checks.steps_equal(name, "cpu", recomputes, points)
    assert sum(one.copied for one in lanes) > 0


def host_only(schedule: Schedule) -> Schedule:
    """Those pages that name results of forward, to the host."""
    graph = expand(schedule).graph
    names = {graph.values[value].name for value in checks.able(graph)}
    kept = [
        replace(one, to="host") if isinstance(one, Page) else one
        for one in schedule.statements
        if not isinstance(one, Page) or set(one.page) <= names
    ]
    return replace(schedule, statements=tuple(kept))


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edited=edits())
def test_any_pages_and_recomputes_give_eager_s_step(edited, lanes):
    case, schedule = edited
    planned = apply(copy.deepcopy(case.model), host_only(schedule))
    for seed, wanted in enumerate(case.wanted):
        assert_same(step(planned, (case.x,), seed=seed), wanted)
    assert faults(lanes) == []
    lanes.clear()


def test_training(lanes):
    checks.losses_go_down("cpu")


@pytest.mark.quick("order0")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_forwards_that_overlap_have_pages_of_their_own(order, lanes):
    checks.two_forwards_in_flight("cpu", order)


@pytest.mark.slow
@pytest.mark.allocating
@pytest.mark.parametrize("points", [False, True])
def test_measured_peak_is_the_predicted_one(points, lanes):
    checks.peak_is_the_prediction("cpu", points)


@pytest.mark.slow
def test_steps_that_are_given_up(lanes):
    checks.given_up_steps_do_no_harm("cpu")
    assert sum(one.kept for one in lanes) > 0


def test_no_pinned_memory(lanes):
    checks.pinned_memory_is_missing("cpu", DelayedLanes)


def test_pinned_memory_is_what_was_simulated_up_to_a_mebibyte(lanes):
    model, x = checks.made("layers", "cpu")
    schedule = checks.paged(schedule_of(model, (x,), recomputes=no_recomputes), True)
    step(apply(model, schedule), (x,))
    needed = checks.timeline_of(schedule).paged["host"]
    assert needed <= sum(lanes[0].allocated) < needed + (1 << 20)
    assert all(nbytes & (nbytes - 1) == 0 for nbytes in lanes[0].allocated)


def test_pinned_memory_goes_to_the_next_step(lanes):
    """However far the host is ahead, there is as much as for the steps in flight."""
    model, x = checks.made("layers", "cpu")
    planned = apply(model, checks.paged(schedule_of(model, (x,), recomputes=no_recomputes), True))
    step(planned, (x,))
    once = list(lanes[0].allocated)
    for _ in range(3):
        step(planned, (x,))
        planned(x)
    assert lanes[0].allocated == once
    first, second = planned(x), planned(x)
    (first + second).backward()
    assert lanes[0].allocated == once * 2


def test_a_place_can_be_in_several_chunks():
    chunks = _chunks(7 << 20)
    assert chunks == [4 << 20, 2 << 20, 1 << 20]
    assert _chunks(0) == []
    assert _chunks(1) == [1 << 20]
    parts = list(_parts(Place("a", 3 << 20, 4 << 20), chunks))
    assert [(part.chunk, part.start, part.stop) for part in parts] == [
        (0, 3 << 20, 4 << 20),
        (1, 0, 2 << 20),
        (2, 0, 1 << 20),
    ]


def test_a_value_in_several_chunks_comes_back(lanes, monkeypatch):
    monkeypatch.setattr(host_pages, "_UNIT", 4096)
    checks.steps_equal("strided", "cpu", no_recomputes, True)
    assert len(lanes[0].allocated) > len(_chunks(1 << 20))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutions"])
def test_planned_steps(name, lanes):
    checks.planned_steps_equal(name, "cpu", 0.0, disk_budget="4GiB", bandwidth="50GB/s", cost="cpu")


@pytest.mark.slow
def test_large_layers(lanes):
    options = {"disk_budget": "4GiB", "host_budget": None, "bandwidth": "50GB/s", "cost": "cpu"}
    checks.copies_overlap("cpu", rows=512, width=64, layers=16, **options)


@pytest.mark.quick("ready")
@pytest.mark.parametrize("missing", ["gone", "ready", "behind", "kept"])
def test_what_a_gpu_does_not_forgive_is_noticed(missing, monkeypatch):
    """The lanes of these tests notice each wait that a step leaves out."""
    collected: list[DelayedLanes] = []

    def of(device: torch.device) -> DelayedLanes:
        collected.append(DelayedLanes(device))
        return collected[-1]

    monkeypatch.setitem(host_pages.HOST_LANES, "cpu", of)
    if missing in ("gone", "ready"):

        def wait(pages: HostPages, trip: int) -> None:
            running: Any = pages._running.pop(trip)
            if (running.direction == "out") is not (missing == "gone"):
                Current().wait_event(running.done)

        monkeypatch.setattr(HostPages, "wait", wait)
    elif missing == "behind":
        monkeypatch.setattr(Lane, "wait_event", lambda *_: None)
    else:
        monkeypatch.setattr(HostPages, "__del__", lambda _: None)
    check = checks.given_up_steps_do_no_harm if missing == "kept" else checks.losses_go_down
    try:
        check("cpu")
    except AssertionError:
        return
    assert faults(collected)


def test_parameters_stay_on_the_device(lanes):
    model, x = checks.made("layers", "cpu")
    schedule = schedule_of(model, (x,), recomputes=no_recomputes)
    name = next(value.name for value in expand(schedule).graph.values if value.kind == "parameter")
    with pytest.raises(EngineError, match=r"parameters or gradients"):
        host_pages_refused(model, checks.with_pages(schedule, [Page((name,), "host")]))


def host_pages_refused(model: torch.nn.Module, schedule: Schedule) -> None:
    apply(model, schedule)


def test_the_lane_is_measured(lanes):
    lane = measured_host_lane(torch.device("cpu"), lambda _: [one.finish() for one in lanes])
    assert lane.out == lane.back > 1e8
    assert lane.latency > 0


def test_trips_have_places_of_their_own():
    sizes = {3: ("a", 1000), 5: ("b", 512), 6: ("c", 1)}
    places = list(host_pages.placed(sizes, 512).values())
    for one, following in pairwise(places):
        assert one.offset + one.nbytes == following.offset
