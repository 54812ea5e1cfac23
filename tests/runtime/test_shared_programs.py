"""What sizes of a schedule share: checks of operators, and the instructions of engine "eager"."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate_runtime import Schedule, apply
from remate_runtime.engine.eager import programs
from remate_runtime.errors import ScheduleError, ScheduleFaultsError
from remate_runtime.format import TensorType, at_size
from remate_runtime.link.sizes import SizedLinks
from remate_runtime.operator_calls import operators
from remate_runtime.operator_calls.lines import CheckedStep

from .sized import Attention, B, T, ranged
from .small import data, seeded
from .stepping import assert_same, just_in_time, schedule_of, step


@pytest.fixture(scope="module")
def attention() -> Schedule:
    return ranged(schedule_of(seeded(Attention()), (data(B, T, 6),), recomputes=just_in_time))


def test_gradients_are_eagers_at_random_sizes(attention: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []
    build = programs.program_of
    monkeypatch.setattr(programs, "program_of", lambda *step: built.append(step) or build(*step))
    model = seeded(Attention())
    live, chance = copy.deepcopy(model), random.Random(0)
    planned = apply(model, attention)
    # At t=3, the width of a head, shapes are equal that differ at other lengths.
    for b, t in [(5, 3), *((chance.randint(2, 24), chance.randint(2, 40)) for _ in range(20))]:
        for each in (live, planned):
            each.zero_grad()
            torch.manual_seed(b * t)
            each(data(b, t, 6))["loss"].backward()
        for theirs, ours in zip(live.parameters(), planned.parameters(), strict=True):
            assert theirs.grad is not None
            assert ours.grad is not None
            assert torch.equal(theirs.grad, ours.grad), (b, t)
    assert 0 < len(built) < 20


@pytest.mark.slow
def test_types_are_checked_at_another_size_as_if_it_were_alone(attention: Schedule) -> None:
    links, chance = SizedLinks(), random.Random(0)
    first = links.expand(at_size(attention))
    live = operators(first.graph, first.where)
    known = CheckedStep.of(first.graph, first.where, links.types, live)
    for _ in range(40):
        step = links.expand(at_size(attention, {"b": chance.randint(2, 24), "t": chance.randint(2, 40)})).graph
        assert operators(step, first.where, (), known) == live
        at = chance.choice([at for at, value in enumerate(step.values) if value.producer >= 0])
        values, faults = list(step.values), list[str]()
        values[at] = replace(values[at], type=TensorType("f32", (chance.randint(2, 9),)))
        for about in (None, known):
            with pytest.raises((ScheduleError, ScheduleFaultsError)) as caught:
                operators(replace(step, values=tuple(values)), first.where, (), about)
            faults.append(str(caught.value))
        assert faults[0] == faults[1]


class Halving(nn.Module):
    """Its backward joins along axis 3, which is the number of rows at the planned size."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.arange(9.0).view(9, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.rows[: x.shape[0]]
        left, right = y.chunk(2, -1)
        return (left * right.tanh()).square().mean()


def test_a_literal_that_is_a_size_in_another_operation_stays() -> None:
    model = seeded(Halving())
    schedule = remate.plan(
        model, (data(3, 2, 2, 2),), budget="100%", dims={"x": {0: "b=2..8"}}, cost="cpu", progress=None
    )
    planned = apply(copy.deepcopy(model), schedule)
    for rows in (3, 2, 5):
        x = data(rows, 2, 2, 2)
        assert_same(step(planned, (x,)), step(model, (x,)), 0.0)
