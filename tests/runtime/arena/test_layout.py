"""Which storages lie in the block: no two at one place at one time, none that leaves the step, and never over a
budget."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import capture
from remate.profile.costing import costed
from remate_runtime.engine.experimental.arena.forms import form_of
from remate_runtime.engine.experimental.arena.layout import Layout, layout
from remate_runtime.flat_step import Graph, Op
from remate_runtime.link import Linked, link, simulate

from ...models import ZOO
from ...planner.tiny_steps import KINDS, tiny_step
from ..small import data, seeded
from ..stepping import everything, just_in_time, no_recomputes
from ..test_memory import Deep, ReturnsViews


def holds(linked: Linked, arrangement: Layout) -> None:
    """What a layout must keep to, whatever is in it."""
    graph, placed = linked.graph, list[tuple[int, int, int, int]]()
    lives = {(a.value, a.birth): a for a in linked.allocations}
    for at, addresses in arrangement.addresses.items():
        event: Any = linked.events[at]
        produced = [v for v in graph.operations[event.op].writes if v is not None]
        assert event.overwrites is None
        for value, address in zip(produced, addresses, strict=True):
            life = lives[value, at]
            assert life.death < len(linked.events)  # outputs and gradients are held to the end
            placed.append((life.birth, life.death, address, address + life.nbytes))
    for left, right in itertools.combinations(placed, 2):
        assert left[1] <= right[0] or right[1] <= left[0] or left[3] <= right[2] or right[3] <= left[2]
    assert max((end for *_, end in placed), default=0) <= arrangement.height
    assert all(address % 64 == 0 for _, _, address, _ in placed)


def has_form(op: Op) -> bool:
    return form_of(op.op) is not None


def always(op: Op) -> bool:
    return True


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_places_of_tiny_steps(kind: str, seed: int) -> None:
    graph = tiny_step(seed, 8, kind)
    linked = link(graph, just_in_time(graph))
    arrangement = layout(linked, always, 1 << 60)
    holds(linked, arrangement)
    assert arrangement.computed >= arrangement.placed > 0
    assert arrangement.rest <= simulate(linked).peak


@pytest.mark.slow
@pytest.mark.parametrize(("recomputes", "share"), [(no_recomputes, 1.0), (everything, 1.1)])
def test_block_and_rest_are_within_the_budget(recomputes: Any, share: float) -> None:
    model, args, kwargs = ZOO["tiny_gpt"].build()
    graph = costed(capture(model, args, kwargs).graph)
    linked = link(graph, recomputes(graph))
    budget = int(simulate(linked).peak * share)
    arrangement = layout(linked, has_form, budget)
    holds(linked, arrangement)
    assert arrangement.height + arrangement.rest <= budget
    assert arrangement.placed > 0.25 * arrangement.computed
    assert arrangement.placed <= layout(linked, has_form, 1 << 60).placed


def test_nothing_is_placed_where_nothing_fits() -> None:
    graph = capture(seeded(Deep()), (data(64, 16),)).graph
    linked = link(graph)
    arrangement = layout(linked, has_form, 1)
    assert (arrangement.addresses, arrangement.height, arrangement.rest) == ({}, 0, simulate(linked).peak)


class Strided(nn.Module):
    """Reads a tensor by its place in its storage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        return (torch.as_strided(y, (3, 3), (4, 1), 1) * torch.cos(x)[:3, :3]).sum()


def names_of(graph: Graph, arrangement: Layout, linked: Linked) -> set[str]:
    return {graph.operations[linked.events[at].op].op for at in arrangement.addresses}  # type: ignore[union-attr]


def test_what_is_read_by_its_place_in_a_storage_lies_in_one_of_its_own() -> None:
    graph = capture(Strided(), (data(4, 4).requires_grad_(),)).graph
    linked = link(graph)
    names = names_of(graph, layout(linked, has_form, 1 << 60), linked)
    assert "aten.as_strided" in {op.op for op in graph.operations}
    assert "aten.tanh" not in names
    assert "aten.cos" in names


def test_outputs_and_what_they_are_views_of_lie_in_storages_of_their_own() -> None:
    graph = capture(seeded(ReturnsViews()), (data(32, 16),)).graph
    linked = link(graph)
    arrangement = layout(linked, has_form, 1 << 60)
    holds(linked, arrangement)
    assert "aten.relu" not in names_of(graph, arrangement, linked)
