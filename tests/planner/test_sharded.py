"""Plans for parameters that FSDP2 shards: bounds hold, low budgets are planned, and other options are refused."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.api.options import PlanOptions
from remate.api.plan import prepare
from remate.api.rebind import rebind
from remate.api.replan import prepare_again, replan
from remate.errors import CaptureError
from remate.partition.canonical import form
from remate.strategy import Context, Deadline, Request, StepInstance, candidates, solve
from remate.strategy.registry import strategy
from remate.strategy.sharded import guaranteed, with_workspaces
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import FlatRecompute, Graph, expand
from remate_runtime.format import Schedule, Sharded
from remate_runtime.link import link, simulate

X = torch.randn(300, 64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 513), nn.Linear(513, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Tower(nn.Module):
    def __init__(self, blocks: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(tuple(blocks) or [Block() for _ in range(4)]), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).square().mean()


def planned(budget: Any, **options: Any) -> Schedule:
    given: dict[str, Any] = {"fsdp": "layers.*", "shards": 2, **options}
    schedule = remate.plan(Tower(), (X,), budget=budget, cost="cpu", effort="quick", progress=None, **given)
    assert isinstance(schedule, Schedule)
    return schedule


@pytest.fixture(scope="module")
def step() -> Graph:
    return expand(planned("100%")).graph


def test_a_rank_uses_less_than_whole_parameters_and_more_than_none(step: Graph) -> None:
    shards = simulate(link(step))
    for kept, more in (("", "layers.0", "layers.1", "layers.2", "layers.3"), True), ((), False):
        other = Sharded(modules=("layers.[0-3]",), shards=2, kept=kept)
        parameters = simulate(link(replace(step, sharded=other)))
        assert (parameters.peak > shards.peak) if more else (parameters.peak <= shards.peak)
    assert shards.time == simulate(link(replace(step, sharded=None))).time


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_uses_what_is_guaranteed(step: Graph, seed: int) -> None:
    draw, sure = random.Random(seed), guaranteed(step)
    forward = [at for at in range(step.backward_start) if not step.operations[at].view]
    backward = [at for at in range(step.backward_start, len(step.operations)) if not step.operations[at].view]
    pairs = sorted((draw.choice(backward), op) for op in draw.sample(forward, draw.randrange(1, 6)))
    plan = [FlatRecompute(op, before) for before, op in pairs]
    try:
        ours = simulate(link(step, plan))
    except ScheduleError:
        return
    least = simulate(link(sure, plan))
    assert least.peak <= ours.peak
    assert all(low <= high for low, high in zip(least.during, ours.during, strict=True))


def test_the_step_with_workspaces_has_the_peak_of_the_baseline(step: Graph) -> None:
    assert simulate(link(with_workspaces(step))).peak == simulate(link(step)).peak


@pytest.mark.slow
def test_repeated_blocks_are_one_form_and_planned_no_slower_than_checkpointed_ones() -> None:
    options = PlanOptions(fsdp="layers.*", shards=2)  # few ranks: reduced gradients grow by half of the parameters
    blocks = (nn.Sequential(nn.LayerNorm(64), Block(), nn.LayerNorm(64), Block()) for _ in range(8))
    step = prepare(Tower(blocks), (X[:100],), {}, "cpu", options=options)
    instance = StepInstance(step.captured.graph, step.parts)
    forms = {form(instance.graph, leaf).key for leaf in instance.leaves[1:-1]}
    assert len(forms) == 1
    with Deadline() as deadline:
        context = Context(deadline, instance.baseline.time)
        plans = candidates(strategy("checkpoint-blocks"), instance, Request(instance.floor), context)
        checkpointed = min(plans, key=lambda candidate: candidate.peak)
    assert solve(instance, Request(checkpointed.peak)).time <= checkpointed.time


@pytest.mark.slow
def test_low_budgets_are_planned_and_every_figure_holds() -> None:
    least = planned("min")
    assert least.peak_bytes < 0.9 * least.baseline_peak_bytes
    again = planned(least.peak_bytes)
    assert again.peak_bytes <= least.peak_bytes
    assert again.lower_bound_ns is not None
    assert again.lower_bound_ns <= again.time_ns
    assert again.model.sharded == Sharded(modules=("layers.[0-3]",), shards=2, kept=("",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "kept"),
    [(False, ("",)), (True, ("", "layers.[0-3]")), ("layers.3", ("layers.3",)), (["", "layers.0"], ("", "layers.0"))],
)
def test_a_plan_again_keeps_the_sharding(keep: Any, kept: tuple[str, ...]) -> None:
    first = planned("95%", shards=4, keep_gathered=keep)
    assert first.model.sharded is not None
    assert first.model.sharded.kept == kept
    step = prepare_again(first, Tower(), (X,))
    for again in (replan(first, step)[0], rebind(first, step).schedule):
        assert again.model.sharded == first.model.sharded
        assert again.peak_bytes == first.peak_bytes


@pytest.mark.slow("options8", "options6")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shards": None}, "fsdp= and shards= belong together"),
        ({"fsdp": None}, "fsdp= and shards= belong together"),
        ({"shards": 1}, "not a number of ranks from 2"),
        ({"at": "layers.*"}, "fsdp= does not support at="),
        ({"dims": "auto"}, "fsdp= does not support dims="),
        ({"disk_budget": "1GiB"}, "fsdp= does not support disk_budget="),
        ({"keep_gathered": "head"}, "'head' is not sharded, and cannot stay gathered"),
        ({"fsdp": None, "shards": None, "keep_gathered": True}, "keep_gathered= belongs to fsdp="),
        ({"fsdp": "layer.*"}, "no module of the model is called 'layer"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        planned("90%", **options)
