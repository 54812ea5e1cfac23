"""The costs of tiles beside those of whole operations."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.api import splitting
from remate.api.plan import prepare
from remate.api.splitting import tiled_steps
from remate.profile import measured
from remate.profile.costing import costed
from remate.splits.tiled_step import TiledStep
from remate.strategy import StepInstance
from remate_runtime.flat_step import TILE, Graph, Ref
from remate_runtime.format import Schedule, Split

from .test_profile_roofline import graph_of

pytestmark = pytest.mark.eager
ROOT = Path(__file__).parents[2]


def model(*after: nn.Module) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """after: What follows each activation."""
    half = nn.Linear(16, 512), nn.GELU(), *after, nn.Linear(512, 16)
    return nn.Sequential(*half, *copy.deepcopy(half)), (torch.randn(512, 16),)


def priced(ns: int, drawn: int = 1, *after: nn.Module) -> TiledStep:
    """Return the first split of the model whose tiles, and sums of them, take so long by measurement.

    drawn: nanoseconds of random operations. after: what follows each activation.
    """
    step = prepare(*model(*after), {}, cost="cpu")
    whole = StepInstance(step.captured.graph, step.parts)

    def price(graph: Graph) -> Graph:
        return replace(graph, operations=tuple(replace(op, ns=drawn if op.random else ns) for op in graph.operations))

    _, family = tiled_steps(replace(step, price=price), whole, "all", "measured")
    return next(family)[1]


def test_a_measured_tile_costs_at_least_its_share() -> None:
    tiled = priced(1)
    wholes = {op.id: op.ns for op in tiled.expanded.unsplit.operations}
    into = {name: split.into for split in tiled.expanded.splits for name in split.operations}
    names = [(op, op.id.partition(TILE)[0]) for op in tiled.expanded.graph.operations if TILE in op.id and not op.view]
    tiles = [(op, name) for op, name in names if op.id.rpartition(TILE)[2].isdecimal()]
    assert tiles
    assert all(op.ns == -(-wholes[name] // into[name]) > 1 for op, name in tiles)
    assert {op.ns for op, _ in names if op not in [tile for tile, _ in tiles]} == {1}


def test_a_measured_tile_costs_what_was_measured_beyond_its_share() -> None:
    slow = 1 << 40
    tiles = [op for op in priced(slow).expanded.graph.operations if op.id.rpartition(TILE)[2].isdecimal()]
    assert {op.ns for op in tiles if TILE in op.id and not op.view} == {slow}


def test_a_tile_of_dropout_costs_its_share_without_the_draw_of_the_mask() -> None:
    """The mask is drawn once, and has a cost of its own."""
    draw = 1000
    tiled = priced(1, draw, nn.Dropout(0.1))
    wholes = {op.id: op for op in tiled.expanded.unsplit.operations}
    into = {name: split.into for split in tiled.expanded.splits for name in split.operations}
    masks = [op for op in tiled.expanded.graph.operations if op.random and TILE in op.id]
    assert masks
    for mask in masks:
        name = mask.id.partition(TILE)[0]
        assert mask.ns == draw < wholes[name].ns
        tiles = [op.ns for op in tiled.expanded.graph.operations if op.id == f"{name}{TILE}0"]
        assert tiles == [-(-(wholes[name].ns - draw) // into[name])]


def planned(**options: Any) -> Schedule:
    module, args = model()
    schedule = remate.plan(module, args, cost="cpu", effort="quick", progress=None, **options)
    assert isinstance(schedule, Schedule)
    return schedule


def splits(schedule: Schedule) -> int:
    return sum(isinstance(statement, Split) for statement in schedule.statements)


@pytest.mark.slow
def test_a_split_that_saves_little_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = "65%"
    plain, split = planned(budget=budget), planned(budget=budget, split=True)
    saved = (plain.time_ns - split.time_ns) / (plain.solve.baseline_time or 1)
    assert splits(split)
    assert saved > 0.01
    monkeypatch.setattr(splitting, "_WORTH", saved + 0.01)
    again = planned(budget=budget, split=True)
    assert not splits(again)
    assert again.time_ns == plain.time_ns


_NEW_PAGES = """
import resource, torch
from remate.profile.measured import settle_allocator
settle_allocator(torch.device("cpu"))
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    together = [torch.ones(1 << 21) for _ in range(3)]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del together
print(after - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other allocators")
def test_the_settled_allocator_keeps_freed_memory() -> None:
    """Otherwise large operations are measured with new pages, and tiles, measured later, without."""
    ran = subprocess.run([sys.executable, "-c", _NEW_PAGES], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(ran.stdout) < 1000  # of 6,144 pages


def test_the_allocator_is_settled_before_costs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    settle, measure = measured.settle_allocator, measured.measure
    monkeypatch.setattr(measured, "settle_allocator", lambda device: (happened.append("settled"), settle(device)))
    monkeypatch.setattr(measured, "measure", lambda *args: (happened.append("measured"), measure(*args))[1])
    costed(graph_of("aten.neg", ["f32[8]"], ["f32[8]"], (Ref(0),)))
    assert happened == ["settled", "measured"]
