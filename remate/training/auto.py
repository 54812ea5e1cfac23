"""`remate.auto`: one line in a training script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..api.progress import Told
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
    progress: Told = "auto",
    **options: Any,
) -> Model:
    """Plan the first training call of a model when it comes, and train by the schedule from that call on.

    Returns the model itself, as an instance of a subclass of its class. Optimizers, wrappers and hooks that exist
    already still work, and what is saved loads without remate. Calls in evaluation mode, without gradients, of other
    sizes, or that export or transform the model run its own forward.

    Args:
        model: The model, or a wrapper such as DistributedDataParallel around it.
        budget: As for `remate.plan`.
        file: Path of the schedule. A file that fits this model, this call and this budget is used without planning. A
            new schedule is written there (into a folder, for several parts).
        on_stale: What to do with a file for another model, call or budget, and with a model that changes while it
            trains. `"replan"` plans again, three times at most. `"refuse"` raises StaleModelError.
        on_refused: What to do with a model that cannot be planned. `"error"` raises what `remate.plan` raises.
            `"original"` warns, and trains by the model's own forward.
        timeout: Seconds that other ranks of torch.distributed wait for the one that plans.
        progress: As for `remate.plan`.
        options: Arguments of `remate.plan` and of `remate_runtime.apply`.

    Returns:
        The model.

    Raises:
        BudgetError: The budget cannot be read.
        UnknownNameError: An option has a word that does not exist.
        OSError: The file cannot be written.
        ScheduleError: The file is not a schedule.
        CaptureError: The model is not a Python module, or a library has replaced its forward.

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
            f"the model is {type(inner).__name__}, not a torch.nn.Module", hint="give the module that trains"
        )
    settings = settings_for(budget, file, on_stale, on_refused, timeout, progress, options)
    if settings.file is not None:
        check_file(settings.file)
    check_free(inner)
    plain = plain_view(inner)
    take_over(inner, plain, Auto(plain, settings))
    return model
