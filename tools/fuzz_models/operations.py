"""`operations`: forwards of random operations, views and writes in place, in random training loops."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import Any

import torch
from torch import nn

import remate
import remate_runtime

from .case import Case, Options
from .grammar import grammar
from .loops import Loop
from .programs import Program, imported
from .trial import Trial

_ROWS = 8
_LOOPS = 4
_NAMES = "abcdefghijklmnopq"
_BUDGETS = ("100%", "85%", "70%", "min", "60%")


def generated(seed: int, options: Options) -> Case:
    """The case of a seed."""
    dice = random.Random(f"operations {seed}")
    program = _program(dice)
    with_input, budget = dice.random() < 0.25, dice.choice(_BUDGETS)
    return Case(program, lambda source: _tried(source, seed, options, with_input, budget))


def _program(dice: random.Random) -> Program:
    writer = _Writer(dice)
    for _ in range(dice.randint(4, 12)):
        writer.write()
    return writer.program()


class _Writer:
    """Writes statements. values: names that hold a tensor of 8 rows and 16 columns."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.values, self.statements = dice, ["a"], ["a = self.lin(x)"]

    def write(self) -> None:
        """Add a statement."""
        if len(self.statements) > 1 and self.dice.random() < 0.2:
            self.statements.append(self._drawn(self._kind("write", 0.05)))
            return
        expression, target = self._expression(), self._target()
        if self.dice.random() < 0.04:
            self.statements.append(f"with torch.no_grad(): {target} = {expression}")
        else:
            self.statements.append(f"{target} = {expression}")
        if target not in self.values:
            self.values.append(target)

    def program(self) -> Program:
        """The statements so far, and a result."""
        return Program("operations", (*self.statements, f"return {self._drawn('result', self.values[-1])}"))

    def _expression(self) -> str:
        if self.dice.random() < 0.15:
            return self._drawn("view")
        expression = self._drawn("binary") if self.dice.random() < 0.3 else self._drawn(self._kind("unary", 0.1))
        if self.dice.random() < 0.2:
            expression = f"torch.tanh({expression})"
        if self.dice.random() < 0.06:
            expression = f"{expression} if self.training else {self.dice.choice(self.values)}"
        return expression

    def _kind(self, kind: str, random_share: float) -> str:
        if self.dice.random() >= random_share:
            return kind
        return "random" if kind == "unary" else f"random {kind}"

    def _drawn(self, section: str, value: str = "") -> str:
        last = self.values[-1] if self.dice.random() < 0.4 else ""
        v, u, w = (self.dice.choice(self.values) for _ in range(3))
        given = {"v": value or last or v, "u": u, "w": w, "n": str(_ROWS)}
        return grammar("operations").draw(section, self.dice, given)

    def _target(self) -> str:
        if len(self.values) == 1 or self.dice.random() < 0.7:
            return _NAMES[len(self.values)]
        return self.dice.choice(self.values)


def _tried(source: str, seed: int, options: Options, with_input: bool, budget: str) -> Trial:
    trial = options.trial()

    def built() -> nn.Module:
        torch.manual_seed(0)
        model = module.M().to(options.dtype)
        Loop(seed, options, [_ROWS], with_input).run_plainly(copy.deepcopy(model))
        return model

    with imported(source) as module:
        model = trial.builds(built)
        schedule = model and trial.plans(lambda: _planned(model, options, with_input, budget))
        for number in range(_LOOPS):
            if model is None or schedule is None or trial.finding:
                break
            applied = remate_runtime.apply(copy.deepcopy(model), schedule, engine=options.engine)
            loop, eager = Loop(1000 * seed + number, options, [_ROWS], with_input), copy.deepcopy(model)
            trial.agrees(f"loop {number}", partial(loop.run, eager), partial(loop.run, applied))
    return trial


def _planned(model: nn.Module, options: Options, with_input: bool, budget: str) -> Any:
    """Plan for a budget, or for the baseline where nothing fits it."""
    torch.manual_seed(1)
    x = torch.randn(_ROWS, 16).to(options.dtype).requires_grad_(with_input)

    def plan(share: str) -> Any:
        how: dict[str, Any] = {"cost": "cpu", "effort": "quick", "differentiate": ["*"], "progress": None}
        with options.casting():
            return remate.plan(model, (x,), budget=share, **how)

    try:
        schedule = plan(budget)
    except remate.RemateError:
        schedule = plan("100%")
    remate_runtime.apply(copy.deepcopy(model), schedule, engine=options.engine)
    return schedule
