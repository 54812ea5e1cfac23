"""Prepares the programs of sizes before their first calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from ..errors import BindError
from .dispatch import Dispatch
from .part_view import parts_of


def prepare(model: nn.Module, sizes: Iterable[Mapping[str, int]]) -> None:
    """Prepare an applied model for sizes, so that the first call of each size is as fast as later calls.

    No step runs. The engine `"compiled"` compiles here. Programs of sizes take at most 1 GiB of host memory. Beyond
    that, the least recently called programs are dropped.

    Args:
        model: A model that `apply` returned, on the device that trains.
        sizes: Values of named sizes, one mapping for each size. Omitted sizes are as planned.

    Raises:
        BindError: The model has no schedule, or no schedule for one of the sizes.

    Examples:
        >>> import remate, remate_runtime, torch
        >>> from torch import nn
        >>> model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        >>> x = torch.randn(1024, 64)
        >>> schedule = remate.plan(model, (x,), budget="80%", dims={"input": {0: "b=2..1024"}}, cost="cpu")
        >>> scheduled = remate_runtime.apply(model, schedule)
        >>> remate_runtime.prepare(scheduled, [{"b": 256}, {"b": 512}])
    """
    parts = parts_of(model)
    step = getattr(model, "_remate_step", None)
    if parts is not None:
        families = [step.steps for step in parts.steps.values()]
    elif isinstance(step, Dispatch):
        families = [step.steps]
    else:
        raise BindError("no schedule was applied to this model\n  pass what `remate_runtime.apply` returned")
    for dims in sizes:
        for family in families:
            faults: list[BindError] = []
            for bound in family:
                try:
                    bound.peak(dims)
                except BindError as fault:
                    faults.append(fault)
            if len(faults) == len(family):
                raise faults[0]
