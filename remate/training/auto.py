"""`remate.auto`: one line in a training script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..api.progress import ProgressOption
from ..errors import CaptureError
from .plan_file import check_file
from .settings import settings_for
from .state import Auto
from .taken_over import check_free, plain_view, take_over

Model = TypeVar("Model", bound=nn.Module)
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def auto(
    model: Model,
    budget: str | int | None = None,
    file: str | Path | None = None,
    *,
    on_stale: str = "replan",
    on_refused: str = "error",
    timeout: float = 1800.0,
    progress: ProgressOption = "auto",
    **options: object,
) -> Model:
    """Plan a model at its first training call, and train it with the schedule from that call on.

    Returns the model itself, as an instance of a subclass of its class. Existing optimizers, wrappers and hooks still
    work, and saved models load without remate. Some calls run the model's own forward: those in evaluation mode or
    without gradients, those of other sizes, and those that export or transform the model.

    If the model cannot be captured as a whole, the parts of it that can are planned. The budget is then a share of the
    peak of these parts.

    Args:
        model: The model, or a wrapper such as DistributedDataParallel around it.
        budget: As for `remate.plan`. If no schedule meets it, the smallest peak is planned, with a warning;
            `on_infeasible="error"` raises InfeasibleError instead.
        file: Path of the schedule. A file that fits this model, call and budget is used without planning. Otherwise the
            new schedule is written there (to a folder, for several parts).
        on_stale: What to do if the file is for another model, call or budget, or if the model changes during training.
            `"replan"` plans again, three times at most. `"refuse"` raises StaleModelError.
        on_refused: What to do if the model cannot be planned. `"error"` raises the error of `remate.plan`.
            `"original"` warns and trains with the model's own forward.
        timeout: Seconds that ranks of torch.distributed wait for the rank that plans.
        progress: As for `remate.plan`.
        options: Arguments of `remate.plan` and of `remate_runtime.apply`.

    Returns:
        The model.

    Raises:
        BudgetError: The budget cannot be read.
        UnknownNameError: An option or its value does not exist.
        OSError: The file cannot be written.
        ScheduleError: The file is not a schedule.
        CaptureError: The model is not a Python module, has no forward, or a library has replaced its forward.

    Example:
        >>> import remate, torch
        >>> model = torch.nn.Linear(4, 4)
        >>> model = remate.auto(model, budget="60%")
    """
    inner: Any = model
    while type(inner).__name__ in _WRAPPERS and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    if not isinstance(inner, nn.Module):
        raise CaptureError(
            f"the model is {type(inner).__name__}, not a torch.nn.Module", hint="pass the module that is trained"
        )
    _refuse_without_forward(inner)
    settings = settings_for(budget, file, on_stale, on_refused, timeout, progress, options)
    if settings.file is not None:
        check_file(settings.file)
    check_free(inner)
    plain = plain_view(inner)
    take_over(inner, plain, Auto(plain, settings))
    return model


def _refuse_without_forward(model: nn.Module) -> None:
    """Raise CaptureError for a container whose other methods call its modules: such a call cannot be planned."""
    if type(model).forward is not nn.Module.forward or "forward" in vars(model):
        return
    children = [name for name, child in model.named_children() if type(child).forward is not nn.Module.forward]
    example = f", model.{children[0]} = remate.auto(model.{children[0]})" if children else ""
    raise CaptureError(
        f"{type(model).__name__} has no forward, so there is no call of it to plan",
        hint=f"call remate.auto for the modules that its other methods call{example}, or give it a forward",
    )
