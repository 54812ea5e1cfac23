"""Scheduled forwards within program transforms. torch.compile skips them; other transforms raise an error."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from inspect import currentframe
from typing import Any

from torch import nn
from torch.nn import functional

from ..errors import BindError, ExecutionError
from ..format.schedule import Schedule
from ..support.callers import frames_to_caller
from ..torch_private.execution import function_modes, is_traced, is_transformed

NO_PROGRAM = (
    "a model with a schedule cannot be exported, scripted or traced: a schedule is for training in eager PyTorch"
    "\n  pass the original model to torch.export, torch.jit and torch.fx; both have the same parameters"
)
_NOT_COMPILED = (
    "torch.compile does not compile a model with a schedule: the schedule runs as before\n"
    "  apply(model, schedule, engine='compiled') runs it through Inductor, within a budget that is known beforehand"
)


def refuse_transforms() -> None:
    """Raise ExecutionError for callers that transform the step into another program than its gradients."""
    if is_transformed():
        raise ExecutionError(
            "a schedule has only gradients of backward(), not those of torch.func or forward-mode differentiation"
            "\n  use the original model there"
        )
    _refuse_function_modes()
    if is_traced():
        raise ExecutionError(NO_PROGRAM)


def _refuse_function_modes() -> None:
    """Raise ExecutionError within a TorchFunctionMode of the user.

    It may replace functions of torch, and a schedule runs the operators below them.
    """
    for mode in function_modes():
        kind = type(mode)
        if not kind.__module__.startswith(("torch.", "remate.")):
            raise ExecutionError(
                f"the call is inside the TorchFunctionMode {kind.__qualname__}, which may replace functions of torch; "
                "a schedule runs the operators below them\n  call the scheduled model outside of it, or the original "
                "model inside"
            )


def refuse_other_attention(applied: object, schedules: Iterable[Schedule]) -> None:
    """Raise BindError if torch's attention function was replaced since `apply`, and a step has attention.

    `context_parallel` replaces it by ring attention, and a schedule runs the operators below the function.

    Args:
        applied: The function when the schedules were applied.
        schedules: The schedules.
    """
    if functional.scaled_dot_product_attention is applied:
        return
    operations = (op.op for schedule in schedules for block in schedule.blocks.values() for op in block.forward)
    if any("attention" in name or name == "aten._safe_softmax" for name in operations):
        raise BindError(
            "torch.nn.functional.scaled_dot_product_attention was replaced after apply, as context_parallel() does; a "
            "schedule runs the operators that it called when it was planned\n  call the scheduled model outside of "
            "that, or plan parts without attention, such as at='layers.*.feed_forward'"
        )


def refuse_compiled(model: nn.Module) -> None:
    """Raise BindError for a model that torch.compile returned."""
    if hasattr(model, "_orig_mod") and any(name == "_orig_mod" for name, _ in model.named_children()):
        raise BindError(
            "this is a result of torch.compile, and a schedule is for the model itself\n  apply it to the original "
            "model, and do not compile the result; torch.compile of the loop around it may stay"
        )


def warn_of_compiler() -> None:
    """Warn that compiling an applied model changes nothing."""
    warnings.warn(_NOT_COMPILED, UserWarning, stacklevel=frames_to_caller())


def is_compiled_alone(step: object) -> bool:
    """Return whether torch.compile compiles the model with this step, and not a loop around it.

    In that case a frame of the compiler is on the stack, for a method of this model.
    """
    frame = currentframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper":
            about = getattr(frame.f_locals.get("fn"), "__self__", None)
            warned = getattr(about, "_remate_compiled", None) is not None  # by `module.compile()`
            return not warned and getattr(about, "_remate_step", None) is step
        frame = frame.f_back
    return False


class CompiledForward:
    """The result of `module.compile()`. A model and its scheduled view have separate ones."""

    def __get__(self, module: object, owner: type) -> Any:
        return None if module is None else getattr(module, "_remate_compiled", None)

    def __set__(self, module: object, value: object) -> None:
        if value is not None and getattr(module, "_remate_step", None) is not None:
            warn_of_compiler()
        object.__setattr__(module, "_remate_compiled", value)
