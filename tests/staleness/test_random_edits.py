"""Random edits of model code: `apply` refuses each that changes the step, and accepts each that only looks
different."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import BindError, Schedule, apply
from remate_runtime.format import decode, encode
from tests.runtime.stepping import schedule_of, step

from .edits import MODELS, harmful, harmless
from .sources import Sources, sources

__all__ = ["sources"]
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def planned(sources: Sources) -> dict[str, tuple[Schedule, dict[str, Any]]]:
    by_name = {}
    for name, text in MODELS.items():
        model = sources.build(text=text)
        schedule = decode(encode(schedule_of(model, (X,))))
        by_name[name] = (schedule, step(sources.build(text=text), (X,)))
    return by_name


def differs(left: dict[str, Any], other: dict[str, Any]) -> bool:
    if left.keys() != other.keys():
        return True
    return any(
        not torch.equal(left[key], other[key]) if isinstance(left[key], torch.Tensor) else left[key] != other[key]
        for key in left
    )


def _doubled(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def edited(dice: random.Random, sources: Sources) -> tuple[str, bool, Any]:
    """(name, whether an edit may change the step, the model)."""
    name, harm = dice.choice(sorted(MODELS)), dice.random() < 0.6
    text = MODELS[name]
    hook = harm and dice.random() < 0.15
    for number in range(dice.randint(1, 3)):
        text = harmful(text, dice) if harm and not hook and number == 0 else harmless(text, dice)
    model = sources.load(text).build()
    if hook:
        dice.choice([m for m in model.modules() if isinstance(m, nn.Linear)]).register_forward_hook(_doubled)
    return name, harm, model


def refused_with(model: Any, schedule: Schedule) -> str:
    """What `apply` says; "" if it takes the model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            apply(model, schedule)
    except BindError as error:
        return str(error)
    return ""


def run(count: int, seed: int, sources: Sources, planned: dict[str, tuple[Schedule, dict[str, Any]]]) -> None:
    dice = random.Random(seed)
    refused = accepted = 0
    for number in range(count):
        name, harm, model = edited(dice, sources)
        schedule, wanted = planned[name]
        changed = differs(step(model, (X,)), wanted)
        model.zero_grad()
        refusal = refused_with(model, schedule)
        where = f"seed {seed}, edit {number} ({name})"
        assert harm or not refusal, f"{where} changes nothing and is refused: {refusal}"
        assert refusal or not changed, f"{where} changes the step and is accepted"
        refused, accepted = refused + bool(refusal), accepted + (not refusal)
    assert refused > count // 3
    assert accepted > count // 4


@pytest.mark.slow
def test_random_edits(sources: Sources, planned: dict[str, tuple[Schedule, dict[str, Any]]]) -> None:
    run(100, 1, sources, planned)
