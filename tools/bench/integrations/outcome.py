"""One loop with a schedule and without: the same parameters to the bit? the peak within the budget?"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

import remate
from remate.step_measurement.beside_eager import try_schedule
from remate_runtime import apply
from remate_runtime.staleness import tensors_of

from .loops import Loop

BUDGET = "85%"


class Outcome(NamedTuple):
    """bitwise: parameters and buffers are equal after the loop. losses: so are the losses of all calls, in order.
    scheduled: calls that ran the schedule, of so many shapes, by so many programs. peak: bytes of a step, measured;
    budget, baseline: bytes."""

    bitwise: bool
    losses: bool
    scheduled: int
    shapes: int
    programs: int
    peak: int
    budget: int
    baseline: int


def outcome(loop: Loop) -> Outcome:
    """Record the loop's first training call, plan it, train again by the schedule and without one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = loop.build()
        wanted = _train(loop, eager)
        recorded = loop.build()
        with remate.record(recorded) as call:
            _train(loop, recorded)
        schedule = remate.plan(call, budget=BUDGET, dims=loop.dims)
        model = loop.build()
        with call.state.in_effect(model, cast=False):  # Trainer sets `use_cache` before it trains
            planned = apply(model, schedule, otherwise="error" if loop.dims else "original")
        ran = planned._remate_step.steps[0]
        shapes, run = list[Any](), ran.run

        def counting(*call: Any, **options: Any) -> object:
            shapes.append(tuple(leaf.shape for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor)))
            return run(*call, **options)

        ran.run = counting
        trained = _train(loop, planned)
        with call.in_effect(cast=False):
            trial = try_schedule(call.model, call.args, call.kwargs, schedule, 1)
    pairs = zip(eager.state_dict().values(), model.state_dict().values(), strict=True)
    bitwise = all(torch.equal(left, other) for left, other in pairs)
    used = len(shapes), len(set(shapes)), len(ran._steps._kept)
    losses = 0 < len(wanted) == len(trained) and all(map(torch.equal, wanted, trained))
    return Outcome(bitwise, losses, *used, trial.peak, schedule.budget_bytes, schedule.solve.baseline_peak)


def _train(loop: Loop, model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns what the calls of the model made: the loss, or whatever comes first of it."""
    gradients: list[torch.Tensor] = []
    note = model.register_forward_hook(
        lambda of, args, output: gradients.append(next(tensors_of(output)).detach().clone())
    )
    torch.manual_seed(7)
    loop.train(model)
    note.remove()
    return gradients
