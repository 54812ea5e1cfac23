"""FSDP2 in a plan: which modules are sharded, and what that excludes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from torch import nn

from remate_runtime.format import Model, Sharded, fold_paths, unfold_paths

from ..capture.parts import matched
from ..errors import CaptureError
from ..profile.costing import COMPILED
from .options import PlanOptions

MOST_SHARDS = 1 << 20  # the most that a file may have


def check_sharding(options: PlanOptions, cost: str | None, command: bool = False) -> None:
    """Raise CaptureError if `fsdp`, `shards` and `keep_gathered` do not fit each other or the other options.

    Args:
        options: The options.
        cost: The cost model.
        command: Whether messages name options of the command line.
    """

    def named(option: str) -> str:
        return f"--{option.replace('_', '-')}" if command else f"{option}="

    fsdp, shards, keep = named("fsdp"), named("shards"), named("keep_gathered")
    write = "write --fsdp 'layers.*' --shards 8" if command else "write fsdp='layers.*', shards=8"
    if options.fsdp is None and options.shards is None:
        if options.keep_gathered is not False:
            raise CaptureError(f"{keep} belongs to {fsdp}", hint=f"{write}, or remove {keep}")
        return
    if options.fsdp is None or options.shards is None:
        raise CaptureError(f"{fsdp} and {shards} belong together", hint=write)
    if not 2 <= options.shards <= MOST_SHARDS:
        raise CaptureError(f"{shards.rstrip('=')}={options.shards!r} is not a number of ranks from 2", hint=write)
    excluded = {
        ("at",): options.at is not None,
        ("dims",): options.dims is not None,
        ("disk_budget", "host_budget"): bool(options.disk_budget or options.host_budget),
    }
    others = [" and ".join(map(named, names)) for names, given in excluded.items() if given]
    if cost == COMPILED:
        others.append("--cost compiled" if command else "cost='compiled'")
    for other in others:
        raise CaptureError(f"{fsdp} does not support {other}", hint=f"remove {other}, or {fsdp} and {shards}")


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
    modules = [*matched(model, _patterns(options.fsdp))]
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            hint = "give it one element and one axis: nn.Parameter(torch.ones(1))"
            raise CaptureError(f"fully_shard does not divide a parameter without axes, as {name!r} is", hint=hint)
    kept = _kept(model, modules, options.keep_gathered)
    return replace(planned, sharded=Sharded(modules=fold_paths(modules), shards=options.shards, kept=kept))


def _kept(model: nn.Module, modules: Sequence[str], wanted: bool | str | Sequence[str]) -> tuple[str, ...]:
    """Return the paths of the modules that stay gathered."""
    if isinstance(wanted, bool):
        return ("", *fold_paths(modules)) if wanted else ("",)
    patterns = _patterns(wanted)
    chosen = [*matched(model, [pattern for pattern in patterns if pattern])]
    for path in chosen:
        if path not in modules:
            hint = f"name modules of fsdp=: {', '.join(fold_paths(modules))}"
            raise CaptureError(f"{path!r} is not sharded, and cannot stay gathered", hint=hint)
    return (*[""] * ("" in patterns), *fold_paths(chosen))


def _patterns(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def sharding_again(planned: Model) -> dict[str, Any]:
    """Return the options that lead to the sharding of a model section."""
    sharded = planned.sharded
    if sharded is None:
        return {}
    kept = tuple(unfold_paths(sharded.kept))
    return {"fsdp": tuple(unfold_paths(sharded.modules)), "shards": sharded.shards, "keep_gathered": kept}
