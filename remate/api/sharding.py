"""FSDP2 in a plan: which modules are sharded, and what that excludes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from torch import nn

from remate_runtime.format import Model, Sharded, fold_paths, unfold_paths

from ..capture.parts import matched
from ..errors import CaptureError
from ..profile.costing import COMPILED
from .options import PlanOptions

MOST_SHARDS = 1 << 20  # the most that a file may have


def check_sharding(options: PlanOptions, cost: str) -> None:
    """Raise CaptureError if `fsdp` and `shards` do not fit each other or the other options."""
    if options.fsdp is None and options.shards is None:
        return
    if options.fsdp is None or options.shards is None:
        raise CaptureError("fsdp= and shards= belong together", hint="write fsdp='layers.*', shards=8")
    if not 2 <= options.shards <= MOST_SHARDS:
        raise CaptureError(f"shards={options.shards!r} is not a number of ranks from 2", hint="write shards=8")
    excluded = {
        "at=": options.at is not None,
        "dims=": options.dims is not None,
        "disk_budget= and host_budget=": bool(options.disk_budget or options.host_budget),
        "split=": options.split is not None,
        "cost='compiled'": cost == COMPILED,
    }
    for what, given in excluded.items():
        if given:
            raise CaptureError(f"fsdp= does not support {what}", hint=f"remove {what.rstrip('=')}, or fsdp and shards")


def with_sharding(planned: Model, model: nn.Module, options: PlanOptions) -> Model:
    """Return the model section with the sharding that the options ask for.

    Raises:
        CaptureError: No module is called so, or the model has tensors that are distributed otherwise.
    """
    if options.fsdp is None or options.shards is None:
        return planned
    if planned.ranks:
        hint = "plan the blocks (at=), and call fully_shard on what apply returns for each"
        raise CaptureError("fsdp= is for models with plain tensors, and this one has DTensors", hint=hint)
    patterns = [options.fsdp] if isinstance(options.fsdp, str) else options.fsdp
    modules = fold_paths([*matched(model, patterns)])
    return replace(planned, sharded=Sharded(modules=modules, shards=options.shards, kept=("",)))


def sharding_again(planned: Model) -> dict[str, Any]:
    """Return the options that lead to the sharding of a model section."""
    sharded = planned.sharded
    return {} if sharded is None else {"fsdp": tuple(unfold_paths(sharded.modules)), "shards": sharded.shards}
