"""Steps of a schedule at several sizes: each is linked as if it were alone, whatever came before."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime import Schedule
from remate_runtime.flat_step import expand
from remate_runtime.format import Dimension, at_size
from remate_runtime.link import link
from remate_runtime.link import sizes as linked_sizes
from remate_runtime.link.fitting import fitted_and_linked
from remate_runtime.link.sizes import SizedLinks

from .sized import Attention, B, T, ranged, sized
from .small import data, seeded
from .stepping import just_in_time, schedule_of


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.weight
        return (scaled.sum(1, keepdim=True).add(1) + scaled.mul(2)).square().mean()


EVERY = [*itertools.product((2, 3, 8, 24), (2, 6, 8, 18, 40))]


@pytest.fixture(scope="module")
def attention() -> Schedule:
    return ranged(schedule_of(seeded(Attention()), (data(B, T, 6),), recomputes=just_in_time))


def test_a_step_is_linked_as_if_it_were_alone(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    linked_alone: list[Any] = []
    monkeypatch.setattr(linked_sizes, "link", lambda *step: linked_alone.append(step) or link(*step))
    links = SizedLinks()
    for b, t in random.Random(0).sample(EVERY, len(EVERY)):
        expanded = expand(at_size(attention, {"b": b, "t": t}))
        for recomputes in ((), expanded.recomputes, expanded.recomputes[::2]):
            assert links.link(expanded.graph, recomputes) == link(expanded.graph, recomputes)
    assert len(linked_alone) < len(EVERY)


def test_what_sizes_decide_is_noticed() -> None:
    """At t=1 the sum of a row has the type of the row, and may take its storage."""
    dims = {"b": Dimension(min=1, max=24, planned=B), "t": Dimension(min=1, max=40, planned=T)}
    schedule, links = (
        sized(schedule_of(seeded(Centred()), (data(B, T),), recomputes=just_in_time), **dims),
        SizedLinks(),
    )
    steps = [expand(at_size(schedule, {"b": b, "t": t})) for b, t in ((5, 7), (5, 1), (1, 7), (1, 1))]
    linked = [links.link(step.graph, step.recomputes) for step in (*steps, *steps)]
    assert linked == [link(step.graph, step.recomputes) for step in (*steps, *steps)]
    assert linked[0].events != linked[1].events


def test_a_fit_does_not_depend_on_the_sizes_before(attention: Schedule) -> None:
    budget = replace(attention.solve, budget=attention.solve.budget // 2)
    schedule, links = replace(attention, solve=budget), SizedLinks()
    for b, t in random.Random(1).sample(EVERY, len(EVERY)):
        assert fitted_and_linked(schedule, {"b": b, "t": t}, links) == fitted_and_linked(schedule, {"b": b, "t": t})
