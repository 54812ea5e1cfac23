"""`sizes`: forwards that decide and compute by the sizes of their input, planned with `dims`."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import remate
import remate_runtime

from .case import Case, Options
from .grammar import grammar
from .programs import Program, imported
from .single_step import gradients
from .trial import Trial

_CALLS = 40


def generated(seed: int, options: Options) -> Case:
    """The case of a seed."""
    dice = random.Random(f"sizes {seed}")
    drawn = [grammar("sizes").draw("statement", dice) for _ in range(dice.randint(2, 5))]
    first = ("n, t = x.shape[0], x.shape[1]", "h = self.a(x.mean(1))")
    largest = (dice.choice([24, 32, 40]), dice.choice([12, 20]))
    batches = [largest, *((dice.randint(2, largest[0]), dice.randint(2, largest[1])) for _ in range(_CALLS))]
    program = Program("sizes", (*first, *drawn, "return (h*h).mean()"))
    return Case(program, lambda source: _tried(source, options, _data(batches, seed, options)))


def _data(sizes: list[tuple[int, int]], seed: int, options: Options) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*size, 16, generator=generator).to(options.dtype) for size in sizes]


def _tried(source: str, options: Options, batches: list[Tensor]) -> Trial:
    trial, example = options.trial(), batches[0]

    def built() -> nn.Module:
        torch.manual_seed(0)
        model = module.M().to(options.dtype)
        gradients(copy.deepcopy(model), options, example)
        return model

    with imported(source) as module:
        model = trial.builds(built)
        planned = model and trial.plans(partial(_planned, model, options, example))
        for batch in batches[1:]:
            if model is None or planned is None or trial.finding:
                break
            run = f"{batch.shape[0]} rows, {batch.shape[1]} columns"
            trial.agrees(run, partial(gradients, model, options, batch), partial(gradients, planned, options, batch))
    return trial


def _planned(model: nn.Module, options: Options, x: Tensor) -> nn.Module:
    how: dict[str, Any] = {"cost": "cpu", "effort": "quick", "progress": None}
    with options.casting():
        schedule = remate.plan(model, (x,), budget="100%", dims={"x": {0: "n", 1: "t"}}, **how)
    return remate_runtime.apply(copy.deepcopy(model), schedule, engine=options.engine)
