"""`live`: forwards that compute and decide by numbers that change between calls, planned with `live`."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import remate
import remate_runtime

from .case import Case, Options
from .comparison import Seen
from .grammar import grammar
from .programs import Program, imported
from .single_step import gradients
from .trial import Trial

Numbers = dict[str, float]

# Numbers by their names for `live`, with texts of forward that read them.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "alpha": ("self.alpha", "self.prop", "self.method", "numbers_of", "'alpha'"),
    "cfg.beta": ("cfg.beta", "cfg.half", "numbers_of", "self.cfg)"),
    "sub.gamma": ("self.sub(", "self.sub.gamma"),
    "delta": ("delta",),
    "opts.eps": ("opts['eps']",),
}
_EXPRESSIONS = ("self.alpha", "self.cfg.beta", "self.sub.gamma", "delta", "opts['eps']")
_CALLS = 30


def generated(seed: int, options: Options) -> Case:
    """The case of a seed."""
    dice = random.Random(f"live {seed}")
    given = {"name": dice.sample(_EXPRESSIONS, dice.choice([1, 2, 2, 3]))}
    drawn = [grammar("live").draw("statement", dice, given) for _ in range(dice.randint(2, 4))]
    program = Program("live", ("h = self.a(x)", *drawn, "return (h*h).mean()"))
    first = {name: dice.choice([0.3, 0.5, 0.8, 0.25]) for name in _NUMBERS}
    later = [{name: _number(dice) for name in _NUMBERS} for _ in range(_CALLS)]
    return Case(program, lambda source: _tried(source, seed, options, first, later))


def _number(dice: random.Random) -> float:
    return dice.choice([dice.random(), round(dice.random(), 1), dice.uniform(-1, 3), 0.25, 0.5, 0.0, 1.0])


def _tried(source: str, seed: int, options: Options, first: Numbers, later: list[Numbers]) -> Trial:
    trial, forward = options.trial(), source.partition("def forward(self, x, delta, opts)")[2]
    live = [name for name, texts in _NUMBERS.items() if any(text in forward for text in texts)]
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)).to(options.dtype)

    def built() -> nn.Module:
        torch.manual_seed(0)
        model = module.M().to(options.dtype)
        _step(copy.deepcopy(model), options, x, first)
        return model

    with imported(source) as module:
        model = trial.builds(built)
        planned = model and trial.plans(partial(_planned, model, options, x, first, live))
        for numbers in later:
            if model is None or planned is None or trial.finding:
                break
            now = {**first, **{name: numbers[name] for name in live}}
            run = ", ".join(f"{name}={now[name]!r}" for name in live)
            trial.agrees(run, partial(_step, model, options, x, now), partial(_step, planned, options, x, now))
    return trial


def _step(model: Any, options: Options, x: Tensor, numbers: Numbers) -> Seen:
    _set(model, numbers)
    return gradients(model, options, x, numbers["delta"], {"eps": numbers["opts.eps"]})


def _set(model: Any, numbers: Numbers) -> None:
    model.alpha, model.cfg.beta, model.sub.gamma = (numbers[name] for name in ("alpha", "cfg.beta", "sub.gamma"))


def _planned(model: nn.Module, options: Options, x: Tensor, first: Numbers, live: list[str]) -> nn.Module:
    _set(model, first)
    call = (x, first["delta"], {"eps": first["opts.eps"]})
    how: dict[str, Any] = {"cost": "cpu", "effort": "quick", "progress": None}
    with options.casting():
        schedule = remate.plan(model, call, budget="100%", live=live, **how)
    return remate_runtime.apply(copy.deepcopy(model), schedule, engine=options.engine)
