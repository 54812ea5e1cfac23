"""`operations`: forwards of random operations, views and writes in place, in random training loops."""

from __future__ import annotations

import copy
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

import remate
import remate_runtime
from remate_runtime.format import Schedule

from .case import Case, Options
from .comparison import Seen
from .edits import edited
from .loops import Loop
from .operation_programs import ROWS, written
from .programs import imported
from .trial import Trial

_LOOPS = 4
_BUDGETS = ("100%", "85%", "70%", "min", "60%")
_SIZES = (8, 12, 16)
_THREADS = 2


class Drawn(NamedTuple):
    """What a seed decides about a model beside its forward. with_input: whether the input requires a gradient."""

    seed: int
    options: Options
    budget: str
    with_input: bool

    def loop(self, number: int) -> Loop:
        """A loop of this model."""
        rows = _SIZES if "sizes" in self.options.ways else (ROWS,)
        return Loop(1000 * self.seed + number, self.options, rows, self.with_input, "threads" not in self.options.ways)


def generated(seed: int, options: Options) -> Case:
    """The case of a seed."""
    dice = random.Random(f"operations {seed}")
    sized, repeatable = "sizes" in options.ways, "threads" in options.ways
    program = written(dice, sized, not repeatable)  # threads share the random numbers
    drawn = Drawn(seed, options, dice.choice(_BUDGETS), dice.random() < 0.25)
    return Case(program, lambda source: _tried(source, drawn))


def _tried(source: str, drawn: Drawn) -> Trial:
    trial = drawn.options.trial()

    def built() -> nn.Module:
        torch.manual_seed(0)
        model = module.M().to(drawn.options.dtype)
        drawn.loop(0).run_plainly(copy.deepcopy(model))
        return model

    with imported(source) as module:
        model = trial.builds(built)
        schedule = model and trial.plans(partial(_planned, model, drawn))
        for number in range(_LOOPS):
            if model is None or schedule is None or trial.finding:
                break
            if "threads" in drawn.options.ways:
                _compare_threads(trial, model, schedule, drawn, number)
            else:
                _compare(trial, model, schedule, drawn, number)
    return trial


def _planned(model: nn.Module, drawn: Drawn) -> Schedule:
    """Plan for a budget, or for the baseline where nothing fits it."""
    torch.manual_seed(1)
    options = drawn.options
    x = torch.randn(ROWS, 16).to(options.dtype).requires_grad_(drawn.with_input)
    how: Any = {"cost": "cpu", "effort": "quick", "differentiate": ["*"], "progress": None}
    if "sizes" in options.ways:
        how["dims"] = {"x": {0: f"n={_SIZES[0]}..{_SIZES[-1]}/{_SIZES[1] - _SIZES[0]}"}}

    def plan(share: str) -> Any:
        with options.casting():
            return remate.plan(model, (x,), budget=share, **how)

    try:
        schedule: Schedule = plan(drawn.budget)
    except remate.RemateError:
        schedule = plan("100%")
    if "edited" in options.ways:
        pages = options.engine == "eager" and "engines" not in options.ways
        splits = options.dtype == torch.float64 and not options.autocast
        schedule = edited(schedule, random.Random(f"edits {drawn.seed}"), pages, splits)
    _applied(copy.deepcopy(model), schedule, options)
    return schedule


def _engines(options: Options) -> list[str]:
    if "engines" not in options.ways:
        return [options.engine]
    return ["eager", "arena", *(["compiled"] if options.dtype == torch.float64 else [])]


def _applied(model: nn.Module, schedule: Schedule, options: Options) -> list[nn.Module]:
    """The model with its schedule, once for each engine."""
    verify: Any = 1 if "checked" in options.ways else "first"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an edited schedule may be over its budget
        return [remate_runtime.apply(model, schedule, engine=engine, verify=verify) for engine in _engines(options)]


def _compare(trial: Trial, model: nn.Module, schedule: Schedule, drawn: Drawn, number: int) -> None:
    loop, eager = drawn.loop(number), copy.deepcopy(model)

    def planned() -> Seen:
        calls = _applied(copy.deepcopy(model), schedule, drawn.options)
        return loop.run(calls[0], calls)

    trial.agrees(f"loop {number}", partial(loop.run, eager, [eager] * len(_engines(drawn.options))), planned)


def _compare_threads(trial: Trial, model: nn.Module, schedule: Schedule, drawn: Drawn, number: int) -> None:
    """Compare loops of copies of the model that run at the same time."""
    loops = [drawn.loop(number * _THREADS + thread) for thread in range(_THREADS)]

    def one_by_one() -> Seen:
        return _together([loop.run(copy.deepcopy(model)) for loop in loops])

    def at_once() -> Seen:
        planned = [_applied(copy.deepcopy(model), schedule, drawn.options)[0] for _ in loops]
        with ThreadPoolExecutor(_THREADS) as pool:
            return _together(list(pool.map(Loop.run, loops, planned)))

    trial.agrees(f"loop {number}", one_by_one, at_once)


def _together(seen: list[Seen]) -> Seen:
    return {f"thread {thread}, {name}": tensor for thread, one in enumerate(seen) for name, tensor in one.items()}
