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
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format import Dimension, Operation, at_size
from remate_runtime.link import link, simulate
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
    schedule = ranged(schedule_of(seeded(Attention()), (data(B, T, 6),), recomputes=just_in_time))

    def working(lines: tuple[Operation, ...]) -> tuple[Operation, ...]:
        return tuple(replace(line, workspace=f"{64 * (at % 5)}*b*t" if at % 5 else 0) for at, line in enumerate(lines))

    blocks = {
        n: replace(b, forward=working(b.forward), backward=working(b.backward)) for n, b in schedule.blocks.items()
    }
    return replace(schedule, blocks=blocks)


def test_a_step_is_expanded_as_if_it_were_alone(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[Schedule] = []
    monkeypatch.setattr(linked_sizes, "expand", lambda schedule: alone.append(schedule) or expand(schedule))
    links = SizedLinks()
    for b, t in random.Random(2).sample(EVERY, len(EVERY)):
        plain = at_size(attention, {"b": b, "t": t})
        assert repr(links.expand(plain)) == repr(expand(plain))  # True and 1 differ here
    assert len(alone) == 1


def test_a_fault_of_one_size_is_that_of_the_step_alone(attention: Schedule) -> None:
    """What a block declares, the gradient's type and the total size are checked at every size."""
    links = SizedLinks()
    links.expand(at_size(attention))
    plain = at_size(attention, {"b": 3, "t": 8})
    name, block = next((name, block) for name, block in plain.blocks.items() if block.inputs)
    wrong = replace(block, inputs=dict.fromkeys(block.inputs, "f32[7]"))
    vast = tuple(replace(line, workspace=1 << 60) for line in block.forward)
    for edited in (wrong, replace(block, forward=vast)):
        schedule = replace(plain, blocks={**plain.blocks, name: edited})
        with pytest.raises(ScheduleError) as alone:
            expand(schedule)
        with pytest.raises(ScheduleError) as sized_step:
            links.expand(schedule)
        assert str(sized_step.value) == str(alone.value)
    grown = {n: replace(b, backward=tuple(map(_longer, b.backward))) for n, b in plain.blocks.items()}
    with pytest.raises(ScheduleError, match=r"R062|R038"):
        links.expand(replace(plain, blocks=grown))


def _longer(line: Operation) -> Operation:
    return replace(line, out="f32[5]") if isinstance(line.out, str) else line


def test_a_step_is_linked_as_if_it_were_alone(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    linked_alone: list[Any] = []
    monkeypatch.setattr(linked_sizes, "link", lambda *step: linked_alone.append(step) or link(*step))
    links = SizedLinks()
    for b, t in random.Random(0).sample(EVERY, len(EVERY)):
        expanded = expand(at_size(attention, {"b": b, "t": t}))
        for recomputes in ((), expanded.recomputes, expanded.recomputes[::2]):
            linked = link(expanded.graph, recomputes)
            assert links.link(expanded, recomputes) == (expanded, linked, simulate(linked).peak)
    assert len(linked_alone) < len(EVERY)


def test_what_sizes_decide_is_noticed() -> None:
    """At t=1 the sum of a row has the type of the row, and may take its storage."""
    dims = {"b": Dimension(min=1, max=24, planned=B), "t": Dimension(min=1, max=40, planned=T)}
    schedule, links = (
        sized(schedule_of(seeded(Centred()), (data(B, T),), recomputes=just_in_time), **dims),
        SizedLinks(),
    )
    steps = [expand(at_size(schedule, {"b": b, "t": t})) for b, t in ((5, 7), (5, 1), (1, 7), (1, 1))]
    linked = [links.link(step, step.recomputes).linked for step in (*steps, *steps)]
    assert linked == [link(step.graph, step.recomputes) for step in (*steps, *steps)]
    assert linked[0].events != linked[1].events


def test_a_fit_does_not_depend_on_the_sizes_before(attention: Schedule) -> None:
    budget = replace(attention.solve, budget=attention.solve.budget // 2)
    schedule, links = replace(attention, solve=budget), SizedLinks()
    for b, t in random.Random(1).sample(EVERY, len(EVERY)):
        assert fitted_and_linked(schedule, {"b": b, "t": t}, links) == fitted_and_linked(schedule, {"b": b, "t": t})
