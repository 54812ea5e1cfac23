"""Engine "eager" builds the instructions of a step once for sizes with the same events."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from remate_runtime import Schedule, apply
from remate_runtime.engine.eager import programs
from remate_runtime.format import Dimension

from .sized import Attention, B, T, sized
from .small import data, seeded
from .stepping import just_in_time, schedule_of


@pytest.fixture(scope="module")
def attention() -> Schedule:
    dims = {"b": Dimension(min=2, max=24, planned=B), "t": Dimension(min=2, max=40, planned=T)}
    return sized(schedule_of(seeded(Attention()), (data(B, T, 6),), recomputes=just_in_time), **dims)


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
