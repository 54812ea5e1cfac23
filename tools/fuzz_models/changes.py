"""`changes`: random changes of a model between its steps, with `remate.auto`, parts, or a schedule of the whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import remate
import remate_runtime
from remate_runtime.errors import RemateError

from .case import Case, Options
from .comparison import Seen, tensors_of
from .grammar import grammar
from .programs import Program, imported
from .trial import Trial

_STEPS = 10
_NAMES = "abcdefghij"
_BUDGETS = ("100%", "100%", "80%")  # at 80%, `remate.auto` may find that no schedule helps
# Parts to plan, and the text of forward that calls each.
_PARTS = {"lin": "", "block": "self.block(", "sub": "self.sub(", "layers.0": "self.layers[0](", "bn": "self.bn("}


class Way(NamedTuple):
    """How a model gets its schedule: "auto" at the first step, "parts" or "whole" before it; and its budget."""

    kind: str
    budget: str


class Step(NamedTuple):
    """One step of training.

    Attributes:
        change: A statement to run before the step; "" for none.
        kind: How outputs become a loss: "plain", "without gradients", "twice" or "first output".
        rows: The size of the batch.
        transposed: Whether the batch has another memory layout.
        factor: Whether the optional argument is given.
        with_input: Whether the input requires a gradient.
        autocast: Whether forward runs under autocast.
    """

    change: str
    kind: str
    rows: int
    transposed: bool
    factor: bool
    with_input: bool
    autocast: bool


def generated(seed: int, options: Options) -> Case:
    """The case of a seed."""
    dice = random.Random(f"changes {seed}")
    program, way = _program(dice), Way(dice.choice(("auto", "auto", "parts", "whole")), dice.choice(_BUDGETS))
    steps = [_step(dice, number, way.kind == "auto", options) for number in range(_STEPS)]
    return Case(program, lambda source: _tried(source, seed, options, way, steps))


def _program(dice: random.Random) -> Program:
    values, statements = ["a"], ["a = self.lin(x)"]
    for _ in range(dice.randint(3, 8)):
        target = _NAMES[len(values)]
        given = {"v": dice.choice(values), "u": dice.choice(values), "target": target}
        statements.append(grammar("changes").draw("statement", dice, given))
        if statements[-1].startswith(f"{target} ="):
            values.append(target)
    result = grammar("changes").draw("result", dice, {"v": values[-1], "u": dice.choice(values)})
    return Program("changes", (*statements, f"return {result}"))


def _step(dice: random.Random, number: int, varied: bool, options: Options) -> Step:
    """Draw a step. varied: the calls differ in more than planned files permit, which `remate.auto` takes."""
    changes = bool(number) and dice.random() < 0.6
    return Step(
        change=grammar("changes").draw("change", dice) if changes else "",
        kind=dice.choice(["plain"] * 6 + ["without gradients", "twice", "first output"]),
        rows=dice.choice([8, 8, 8, 4, 12]) if number and varied else 8,
        transposed=dice.random() < 0.1,
        factor=varied and dice.random() < 0.15,
        with_input=varied and dice.random() < 0.12,
        autocast=options.autocast or (varied and dice.random() < 0.1),
    )


def _tried(source: str, seed: int, options: Options, way: Way, steps: list[Step]) -> Trial:
    trial = options.trial()

    def built(module: ModuleType) -> nn.Module:
        torch.manual_seed(seed)
        model = module.M().to(options.dtype)
        tensors_of(model(torch.randn(8, 16).to(options.dtype)))
        torch.manual_seed(seed)
        return module.M().to(options.dtype)

    with imported(source) as own, imported(source) as other:
        eager = trial.builds(partial(built, own))
        model = eager and built(other)
        planned = model and trial.plans(partial(_planned, model, options, way, source))
        if eager is None or model is None or planned is None:
            return trial
        for number, step in enumerate(steps):
            if step.change and not _changed(trial, step.change, (own, eager), (other, model)):
                break
            run = f"step {number} ({way.kind}; so far {', '.join(_described(steps[: number + 1]))})"
            train = partial(_train, seed=1000 * seed + number, step=step, options=options)
            if not trial.agrees(run, partial(train, eager, eager), partial(train, planned, model)):
                break
    return trial


def _described(steps: list[Step]) -> list[str]:
    return [text for step in steps for text in (step.change, step.kind) if text]


def _planned(model: nn.Module, options: Options, way: Way, source: str) -> Any:
    """The model with a schedule: planned at the first step by `remate.auto`, for some parts, or for the whole model."""
    how: dict[str, Any] = {"cost": "cpu", "effort": "quick", "progress": None}
    if way.kind == "auto":
        return remate.auto(model, way.budget, engine=options.engine, **how)
    if way.kind == "parts":
        how["at"] = [path for path, call in _PARTS.items() if call in source.partition("def forward(self, x, m")[2]]
    torch.manual_seed(1)
    x = torch.randn(8, 16).to(options.dtype)
    with options.casting():
        schedule: Any = remate.plan(model, (x,), budget="100%", **how)
    return remate_runtime.apply(model, schedule, engine=options.engine)


def _changed(trial: Trial, change: str, own: tuple[ModuleType, Any], other: tuple[ModuleType, Any]) -> bool:
    """Change both models. Whether training goes on."""
    for module, model in (own, other):
        torch.manual_seed(9)
        try:
            exec(change, {"ns": module, "m": model, "nn": nn, "torch": torch})
        except RemateError as error:
            trial.noticed(error)
            return False
        except Exception as error:
            if model is other[1]:
                trial.noticed(error)
            return False
    return True


def _train(call: Callable[..., Any], model: nn.Module, seed: int, step: Step, options: Options) -> Seen:
    """One step of training, and all that can be seen of it."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    x, seen = _batch(step, options), Seen()
    given = {"m": torch.rand(step.rows, 1).to(options.dtype)} if step.factor else {}
    for _ in range(2 if step.kind == "twice" else 1):
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=step.autocast),
            torch.set_grad_enabled(step.kind != "without gradients"),
        ):
            result = call(x, **given)
        for output in tensors_of(result):
            seen[f"output {len(seen)}"] = output.detach().clone()
        only_first = step.kind == "first output" or isinstance(result, dict)  # which has a loss
        trained = [output for output in tensors_of(result) if output.requires_grad][: 1 if only_first else None]
        if trained:
            torch.stack([output.float().square().mean() for output in trained]).sum().backward()
    seen["gradient of the input"] = x.grad
    for name, parameter in model.named_parameters():
        seen[f"gradient of {name}"] = None if parameter.grad is None else parameter.grad.clone()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad.clamp(-1, 1).nan_to_num()
    return seen | {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def _batch(step: Step, options: Options) -> Tensor:
    x = torch.randn(step.rows, 16).to(options.dtype)
    return (x.t().contiguous().t() if step.transposed else x).requires_grad_(step.with_input)
