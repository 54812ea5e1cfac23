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
    """Plan the first training call of `model` when it comes, and train by the schedule from that call on.

        model = remate.auto(model, budget="60%", file="plan.json")

    Returns `model` itself: its class becomes a subclass of its own, so that optimizers, wrappers and hooks that exist already
    go on, `isinstance`, `state_dict` and names are as before, and what is saved of it loads without remate. A wrapper
    (DistributedDataParallel) is given back as it is, and the model in it is planned. Nothing happens before the first call in
    train mode with gradients. Calls in eval mode, without gradients, of other sizes than the schedule is for, or that
    export or transform the model run its own forward.

    budget: as of `remate.plan`: without one, and without `slowdown`, the knee of the curve of peak and time. file: where the schedule is kept: one that is for this model, this call and this budget is
    used without planning; a new one is written there (into a folder, for several parts). on_stale: what to do with a file that
    is for another model, call or budget, and with a model that changes while it trains: "replan" plans it anew, three times
    at most, "refuse" raises StaleModelError. on_refused: what to do where it cannot be planned: "error" raises what
    `remate.plan` does, "original" warns and trains by the model's own forward. timeout: seconds that other ranks of
    torch.distributed wait for the one that plans for them. progress: as of `remate.plan`; what became of the model is printed
    on stderr, too, unless it is None. options: arguments of `remate.plan`
    (dims is "auto" by default, where sizes can be left open) and of `remate_runtime.apply` (otherwise is "original").

    Raises BudgetError, UnknownNameError, OSError (a file that cannot be written), ScheduleError (one that is no schedule),
    CaptureError (no Python module, or one whose forward a library has replaced).
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
