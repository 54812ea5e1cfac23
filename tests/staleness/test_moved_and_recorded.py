"""Files that moved, calls that a loop made: the model is the planned one although names and settings differ when it is
applied."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import remate
from remate_runtime import StaleModelError, apply
from remate_runtime.format import decode, encode
from tests.runtime.stepping import assert_same, schedule_of, step

from .changed_models import MODELS
from .sources import TRAIN, Sources, sources

__all__ = ["sources"]
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.quick("structure")
@pytest.mark.parametrize("name", ["values", "structure"])
def test_a_moved_file_is_the_same_model(sources: Sources, name: str) -> None:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    schedule = decode(encode(schedule_of(sources.load(MODELS[name]).build(), (x,))))
    model = sources.load(MODELS[name], "elsewhere").build()
    assert_same(step(apply(model, schedule), (x,)), step(model, (x,)))


@pytest.mark.slow
def test_a_moved_file_that_changed_is_refused(sources: Sources) -> None:
    schedule = decode(encode(schedule_of(sources.build(), (X,))))
    model = sources.load(TRAIN.replace("SLOPE = 0.25", "SLOPE = 0.5"), "elsewhere").build()
    with pytest.raises(StaleModelError, match=r"global 'elsewhere.SLOPE' was 0.25 when planned, is 0.5"):
        apply(model, schedule)


@pytest.mark.slow
def test_a_script_in_a_spawned_process_has_the_name_of_its_file(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = decode(encode(schedule_of(sources.build(), (X,))))
    file = sources.load(TRAIN).__file__
    spawned = types.ModuleType("__mp_main__")
    spawned.__file__ = file
    monkeypatch.setitem(sys.modules, "__mp_main__", spawned)
    exec(compile(TRAIN, str(file), "exec"), vars(spawned))
    model: Any = spawned.__dict__["build"]()
    assert_same(step(apply(model, schedule), (X,)), step(model, (X,)))


LOOP = """
import types

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, use_cache=True, k=1.5):
        super().__init__()
        self.lin, self.config = nn.Linear(8, 4), types.SimpleNamespace(use_cache=use_cache, k=k)

    def forward(self, x):
        y = self.lin(x) * self.config.k
        return (y.sin() if self.config.use_cache else y.cos()).mean()


class Trainer:
    def __init__(self, model):
        self.model = model
        model.config.use_cache = False

    def train(self):
        self.model(torch.ones(4, 8)).backward()


def build(**settings):
    torch.manual_seed(0)
    return Net(**settings)
"""


def test_what_a_recorded_loop_sets_is_compared_at_the_first_call(sources: Sources) -> None:
    module = sources.load(LOOP)
    model = module.build()
    trainer = module.Trainer(model)  # sets the config before anything is recorded, as that of transformers does
    with remate.record(model) as call:
        trainer.train()
    schedule = decode(encode(remate.plan(call, budget="100%", cost="cpu")))
    fresh, eager = module.build(), module.build()
    planned = apply(fresh, schedule)
    with pytest.raises(StaleModelError, match=r"use_cache was false.*, is true"):
        planned(X)
    for subject in (fresh, eager):
        module.Trainer(subject)
    assert_same(step(planned, (X,)), step(eager, (X,)))
    fresh.config.k = 2.5
    with pytest.raises(StaleModelError, match=r"k was 1.5, is 2.5"):
        planned(X)
