"""Scheduled forwards inside program transforms: torch.compile leaves them out, other transforms refuse them."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any

from torch import nn

from ..errors import BindError, ExecutionError
from ..support.callers import frames_to_caller
from ..torch_private.execution import function_modes, is_traced, is_transformed

NO_PROGRAM = (
    "a model with a schedule cannot be exported, scripted or traced: a schedule is for training by eager PyTorch"
    "\n  give the original model to torch.export, torch.jit and torch.fx; both have the same parameters"
)
_NOT_COMPILED = (
    "torch.compile does not compile a model with a schedule: the schedule runs as before\n"
    "  apply(model, schedule, engine='compiled') runs it through Inductor, within a budget that is known before"
)


def refuse_transforms() -> None:
    """Raise ExecutionError for callers that transform the step into another program than its gradients."""
    if is_transformed():
        raise ExecutionError(
            "a schedule has gradients of backward() alone, not those of torch.func or forward-mode differentiation"
            "\n  use the original model there"
        )
    _refuse_function_modes()
    if is_traced():
        raise ExecutionError(NO_PROGRAM)


def _refuse_function_modes() -> None:
    """Raise ExecutionError inside a TorchFunctionMode of the user's: it may replace functions of torch, and a schedule
    runs the operators below them."""
    for mode in function_modes():
        kind = type(mode)
        if not kind.__module__.startswith(("torch.", "remate.")):
            raise ExecutionError(
                f"the call is inside the TorchFunctionMode {kind.__qualname__}, which may replace functions of torch; "
                "a schedule runs the operators below them\n  call the scheduled model outside of it, or the original "
                "model inside"
            )


def refuse_compiled(model: nn.Module) -> None:
    """Raise BindError for a model that torch.compile returned."""
    if hasattr(model, "_orig_mod") and "_orig_mod" in model._modules:
        raise BindError(
            "this is what torch.compile made of a model, and a schedule is for the model itself\n  apply it to the "
            "model that was compiled, and do not compile that: torch.compile of the loop around it may stay"
        )


def warn_of_compiler() -> None:
    """Warn that compiling an applied model changes nothing."""
    warnings.warn(_NOT_COMPILED, UserWarning, stacklevel=frames_to_caller())


def is_compiled_alone(step: object) -> bool:
    """Whether torch.compile was given the very model with this step, not a loop around it: one of the frames above is
    the compiler's, about a method of this model."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper":
            about = getattr(frame.f_locals.get("fn"), "__self__", None)
            warned = getattr(about, "_remate_compiled", None) is not None  # by `module.compile()`
            return not warned and getattr(about, "_remate_step", None) is step
        frame = frame.f_back
    return False


class CompiledForward:
    """The result of `module.compile()`. A model and its scheduled view have separate ones."""

    def __get__(self, module: Any, owner: type) -> Any:
        return None if module is None else getattr(module, "_remate_compiled", None)

    def __set__(self, module: Any, value: Any) -> None:
        if value is not None and getattr(module, "_remate_step", None) is not None:
            warn_of_compiler()
        object.__setattr__(module, "_remate_compiled", value)
