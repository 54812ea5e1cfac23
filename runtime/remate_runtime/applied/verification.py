"""`apply(..., verify=True)` and `verify=(args, kwargs)`: an immediate self-check with gradients on a separate call."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import BindError, RemateError
from ..format.schedule import Model
from ..operator_calls.overloads import TORCH_DTYPES
from ..self_check import Program
from ..staleness.beside import example_call
from .dispatch import Dispatch
from .scheduled_forward import ScheduledForward

Call = tuple[Sequence[Any], Mapping[str, Any]]


def verify_step(dispatch: Dispatch, step: ScheduledForward, call: Call | None, pads: bool = False) -> None:
    """Run an eager step and a scheduled step, and compare outputs, buffers, generators and gradients.

    The state of the model and of generators is restored.

    Args:
        dispatch: The dispatch of the model.
        step: The schedule.
        call: The call to run; None for random arguments of the planned types.
        pads: Whether to pad a smaller call.

    Raises:
        StaleModelError: They differ by more than rounding.
        BindError: The step cannot run in this way.
    """
    model, recorded = dispatch.model, step.planned.model
    _refuse_other_mode(model, recorded)
    given = example_call(model, recorded, step.device) if call is None else call
    args, kwargs = tuple(given[0]), dict(given[1])
    with torch.enable_grad(), _autocast(recorded, step.device):
        program = _padded(step, args, kwargs) if pads else step.program(step.call(args, kwargs), args, kwargs)
        with _explained(call is None):
            dispatch.self_check.now(program)


def _padded(step: ScheduledForward, args: tuple[object, ...], kwargs: dict[str, Any]) -> Program:
    """Return the self-check's input for a model on a call, and its schedule on the padded call.

    Sums over more elements round differently.
    """
    padded = step.padded(args, kwargs)
    call = step.call(padded.args, padded.kwargs)
    program = step.program(call, args, kwargs)
    return program._replace(
        run=lambda: step.padding.cut(step.run(call), padded, args, kwargs), observe=lambda: iter(()), exact=False
    )


def verify_parts(model: nn.Module, view: nn.Module, dispatch: Dispatch, call: Call) -> None:
    """Verify a model whose parts have schedules on a call of the whole model.

    Args:
        model: The live model.
        view: The view with scheduled parts.
        dispatch: The dispatch of one of the parts.
        call: The call to run.
    """
    step = dispatch.steps[0]
    recorded = step.planned.model
    _refuse_other_mode(model, recorded)
    args, kwargs = tuple(call[0]), dict(call[1])
    solve = step.schedule.solve
    program = Program(
        name=step.schedule.name,
        model=model,
        args=args,
        kwargs=kwargs,
        run=lambda: view.forward(*args, **kwargs),
        observe=lambda: iter(()),
        graph=step.steps.graph,
        updated=lambda: dict(model.named_buffers()),
        plain=dict,
        trained=dict(model.named_parameters()),
        differentiated=None,
        device=step.device,
        exact=step.steps.exact,
        eager_bytes=solve.baseline_peak,
        budget=solve.budget,
        communicates=bool(recorded.ranks),
    )
    with torch.enable_grad(), _autocast(recorded, step.device):
        dispatch.self_check.now(program)


def _refuse_other_mode(model: nn.Module, recorded: Model) -> None:
    if model.training != recorded.training:
        mode = "train()" if recorded.training else "eval()"
        raise BindError(
            f"verify runs a step in the planned mode, and the model is not in {mode} mode\n  call model.{mode} first"
        )


def _autocast(recorded: Model, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if recorded.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, TORCH_DTYPES[recorded.autocast])


@contextlib.contextmanager
def _explained(random: bool) -> Any:
    """Add advice to an error that a model raises for random inputs."""
    try:
        yield
    except RemateError:
        raise
    except Exception as error:
        if not random:
            raise
        raise BindError(
            f"verify cannot run the model on random inputs of the planned types: {error}\n  pass a batch: "
            "apply(..., verify=(args, kwargs))"
        ) from error
