"""The integer program for steps whose values are read much later."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from remate.api.plan import prepare
from remate.errors import InfeasibleError
from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.effort import QUICK
from remate.strategy.milp.flat_far import divided, far_storages, far_windows, held
from remate.strategy.segments import segments
from tools.bench.low_budget_models import Unrolled


@cache
def step() -> StepInstance:
    prepared = prepare(Unrolled(64, 100), (torch.zeros(16, 25, dtype=torch.long),), {}, cost="h200")
    return StepInstance(prepared.captured.graph, prepared.parts)


def names(instance: StepInstance, storages: frozenset[int]) -> set[str]:
    return {instance.graph.values[s].name for s in storages}


@pytest.mark.slow
def test_what_is_read_far_away_is_found() -> None:
    instance = step()
    split = segments(instance.problem, 40)
    assert names(instance, far_storages(instance.problem, split, gather=False).spread) == {"embed.embedding"}
    far = far_storages(instance.problem, split, gather=True)
    assert names(instance, far.gathered) == {"stack"}
    assert far.loose
    assert {instance.graph.operations[instance.problem.producer[s]].op for s in far.loose} == {"aten.mul.Tensor"}


@pytest.mark.slow
def test_a_stage_ends_where_memory_is_given_back() -> None:
    assert divided((0, 0, 0, 1, 1, 2), (100, 99, 90, 90, 50, 50)) == (0, 0, 1, 2, 3, 4)
    assert divided((0, 0, 0, 0), (100, -1, 100, 10)) == (0, 0, 0, 1)  # a view holds what was held before it
    instance = step()
    stage = segments(instance.problem, 40).stage
    assert max(divided(stage, held(instance))) > max(stage)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.8, 0.7])
def test_an_unrolled_recurrence_gets_a_faster_plan(share: float) -> None:
    """Each on its own: no polishing."""
    request = Request(int(share * step().baseline.peak), effort=QUICK)
    flat, far = (
        solve(StepInstance(step().graph, step().blocks), request, policy(name)) for name in ("flat", "flat-far")
    )
    assert far.peak <= request.budget
    assert far.lower_bound <= far.time < flat.time


@pytest.mark.slow
def test_where_nothing_else_fits_what_gathers_is_kept() -> None:
    instance = StepInstance(step().graph, step().blocks)
    assert far_windows(instance, 40, gather=True) is not None
    request = Request(int(0.49 * instance.baseline.peak), effort=QUICK)
    with pytest.raises(InfeasibleError):
        solve(instance, request, policy("flat"))
    assert solve(instance, request, policy("flat-far")).peak <= request.budget


def test_a_step_without_anything_far_gets_no_model() -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(8)))
    prepared = prepare(layers, (torch.zeros(64, 8),), {}, cost="h200")
    instance = StepInstance(prepared.captured.graph, prepared.parts)
    assert far_windows(instance, 40, gather=True) is None
