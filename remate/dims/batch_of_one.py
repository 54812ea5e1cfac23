"""A batch of one, which a range does not contain unless it was requested: PyTorch may run another step for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from remate_runtime.applied import plan_call
from remate_runtime.format import Schedule

from .requested_sizes import SMALLEST, Asking, read
from .resize import resized

_BATCH_AXIS = 0


def about_batch_of_one(
    schedule: Schedule, dims: Any, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return what to do where the last batch has one element; "" if the caller gave the range, or no batch varies.

    Args:
        schedule: The planned schedule.
        dims: As in `remate.plan`.
        model: The live model, like args and kwargs: the planned call.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    asking = dims if isinstance(dims, Asking) else read(dims, model, args, kwargs)
    ones = [] if asking is None else _without_one(schedule, asking)
    if asking is None or not ones:
        return ""
    sizes = {size.name: 1 if size.name in ones else size.planned for size in asking.sizes}
    call = plan_call(model, *resized(asking, args, kwargs, sizes), schedule).partition("  #")[0]
    which = " or ".join(f"{name}=1" for name in ones)
    return (
        f"the schedule is not for {which}, which may be another step in PyTorch; if the last batch can be that small, "
        "run it by the model's own forward, apply(model, schedule, "
        f"otherwise='original'), or plan it too, apply(model, [schedule, one]): one = {call}"
    )


def _without_one(schedule: Schedule, asking: Asking) -> list[str]:
    """Return the batch sizes whose range begins at 2 without the caller's request."""
    batches = {axis.name for axis in asking.axes if axis.axis == _BATCH_AXIS}
    given = {size.name for size in asking.sizes if size.min is not None}
    planned = schedule.model.dims.items()
    return [name for name, dim in planned if dim.min == SMALLEST and name in batches - given]
