"""Pages to pinned memory on a GPU. Run with `pytest -m cuda`. `test_host_pages.py` runs the same checks on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import remate
from remate.profile.bandwidth import measured_host_lane
from remate_runtime import apply
from remate_runtime.engine.eager.host_pages import CudaLanes
from remate_runtime.errors import EngineError
from remate_runtime.flat_step.expansion import expand

from . import host_paging as checks
from .stepping import assert_same, just_in_time, no_recomputes, schedule_of, step

pytestmark = pytest.mark.cuda
# Kernels of eager PyTorch may add up in another order; one model computes in bfloat16.
EAGER = {"layers": 1e-5, "dropping": 1e-5, "strided": 2e-2, "gpt": 1e-4, "convolutions": 1e-4}


@pytest.fixture(autouse=True)
def equal_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN adds up in the same order in every call."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
@pytest.mark.parametrize("name", list(checks.MODELS))
def test_steps_equal_eager(name, recomputes, points):
    checks.steps_equal(name, "cuda", recomputes, points, EAGER[name])


def test_training():
    checks.losses_go_down("cuda")


@pytest.mark.parametrize("name", list(checks.MODELS))
def test_another_stream(name):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        checks.steps_equal(name, "cuda", no_recomputes, True, EAGER[name])
    torch.cuda.current_stream().wait_stream(stream)


def test_steps_on_alternating_streams():
    """The pinned memory and the lanes are shared by steps of several streams."""
    model, x = checks.made("dropping", "cuda")
    plain = schedule_of(model, (x,), recomputes=no_recomputes)
    planned, unpaged = apply(copy.deepcopy(model), checks.paged(plain, True)), apply(model, plain)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for seed in range(9):
        with torch.cuda.stream(streams[seed % 3]):
            results.append(step(planned, (x,), seed=seed))
        streams[(seed + 1) % 3].wait_stream(streams[seed % 3])
    torch.cuda.synchronize()
    for seed, actual in enumerate(results):
        assert_same(actual, step(unpaged, (x,), seed=seed))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_forwards_that_overlap_have_pages_of_their_own(order):
    checks.two_forwards_in_flight("cuda", order)


@pytest.mark.parametrize("points", [False, True])
def test_measured_peak_is_the_predicted_one(points):
    checks.peak_is_the_prediction("cuda", points)


def test_steps_that_are_given_up():
    checks.given_up_steps_do_no_harm("cuda")


def test_no_pinned_memory():
    checks.pinned_memory_is_missing("cuda", CudaLanes)


@pytest.mark.parametrize("name", list(checks.PLANNED))
def test_planned_with_a_budget_of_the_host(name):
    """The whole way: measured costs and a measured lane, a plan with pages, steps, and their peak."""
    checks.planned_steps_equal(name, "cuda", EAGER[name], host_budget="4GiB")


def test_copies_run_beside_the_operations():
    checks.copies_overlap("cuda", rows=8192, width=4096, layers=16)


def test_the_lane_is_measured():
    lane = measured_host_lane(torch.device("cuda", torch.cuda.current_device()))
    assert 1e9 < lane.out < 1e12
    assert 0 < lane.latency < 1_000_000


def test_a_page_to_the_disk_is_refused():
    model, x = checks.made("layers", "cuda")
    schedule = checks.paged(schedule_of(model, (x,), recomputes=no_recomputes), True)
    pages = [replace(s, to="disk") if isinstance(s, checks.Page) else s for s in schedule.statements]
    with pytest.raises(EngineError, match="host"):
        apply(model, replace(schedule, statements=tuple(pages)))


def test_a_page_of_a_parameter_is_refused():
    model, x = checks.made("layers", "cuda")
    schedule = schedule_of(model, (x,), recomputes=no_recomputes)
    name = next(v.name for v in expand(schedule).graph.values if v.kind == "parameter")
    with pytest.raises(EngineError, match="parameters or gradients"):
        apply(model, checks.with_pages(schedule, [checks.Page((name,), "host")]))


def test_a_disk_budget_is_refused_with_the_way_out():
    model, x = checks.made("layers", "cuda")
    with pytest.raises(remate.BudgetError, match="host_budget"):
        remate.plan(model, (x,), budget="60%", disk_budget="1GiB")


def test_cuda_graphs_leave_pages_to_the_engine():
    model, x = checks.made("layers", "cuda")
    plain = schedule_of(model, (x,), recomputes=no_recomputes)
    wanted = step(apply(copy.deepcopy(model), plain), (x,))
    schedule = checks.paged(plain, True)

    def replayed() -> dict[str, Any]:
        return step(apply(copy.deepcopy(model), schedule, cuda_graphs=True), (x,))

    with pytest.warns(UserWarning, match="without CUDA graphs: it pages values"):
        actual = replayed()
    assert_same(actual, wanted)
