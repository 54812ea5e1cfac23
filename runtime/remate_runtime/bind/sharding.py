"""Refuses models whose parameters torch distributes in a way that a schedule cannot run.

torch's distributed modules are looked up but never imported. If nobody has imported them, nothing is sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..errors import BindError
from .modules import modules_by_path


def refuse_sharded(model: nn.Module, distributed: bool = False) -> None:
    """Raise BindError for a model that was sharded before a schedule is applied to it.

    Args:
        model: The live model.
        distributed: Whether the schedule is for a model with DTensors.
    """
    reason = _fsdp1(model) or ("" if distributed else _tensors(model))
    if sharded_parts(tuple(model.modules())):
        reason = (
            "fully_shard (FSDP2) has sharded this model already\n  apply the schedule first, to the whole model or to "
            "each block: planned = apply(model, file); then fully_shard(block) for its blocks, and fully_shard(planned)"
        )
    if reason:
        raise BindError(reason)


def refuse_sharded_since(model: nn.Module, distributed: bool = False) -> None:
    """Raise BindError for a model with a schedule that was sharded afterwards in a way that does not work.

    Args:
        model: The live model.
        distributed: Whether the schedule is for a model with DTensors.
    """
    reason = _fsdp1(model) or ("" if distributed else _tensors(model))
    if reason:
        raise BindError(reason)


def sharded_parts(modules: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    """Return the modules that `fully_shard` was called on."""
    kind = _kind("torch.distributed.fsdp", "FSDPModule")
    if kind is None or not any(issubclass(class_, kind) for class_ in {*map(type, modules)}):
        return ()
    return tuple(module for module in modules if isinstance(module, kind))


def is_distributed(tensor: object) -> bool:
    """Return whether a tensor is a DTensor, of which each rank has a part or a copy."""
    kind = _kind("torch.distributed.tensor", "DTensor")
    return kind is not None and isinstance(tensor, kind)


def _kind(module: str, name: str) -> type | None:
    value = vars(sys.modules.get(module, torch)).get(name)
    return value if isinstance(value, type) else None


def _fsdp1(model: nn.Module) -> str | None:
    """Return why submodules that FSDP1 wraps are refused; None without any.

    A step does not call them, so their parameters are not gathered.
    """
    fsdp1 = _kind("torch.distributed.fsdp", "FullyShardedDataParallel")
    for path, module in modules_by_path(model, each_once=True).items():
        if fsdp1 is not None and isinstance(module, fsdp1):
            return (
                f"FullyShardedDataParallel gathers the parameters of {path or 'the model'!r} when it is called, and "
                "a schedule of the whole model does not call its parts\n  plan one block, and wrap the result of apply "
                "for each: FullyShardedDataParallel(apply(block, file)); wrap the whole model alone, "
                "FullyShardedDataParallel(apply(model, file)); or use fully_shard (FSDP2), which may shard the blocks "
                "of a model with a schedule"
            )
    return None


def _tensors(model: nn.Module) -> str | None:
    """Return why DTensors are refused; None without any.

    Parameters that FSDP2 shards are allowed, because they are gathered when needed.
    """
    if sharded_parts(tuple(model.modules())):
        return None
    named: list[tuple[str, Any]] = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        if is_distributed(tensor):
            return (
                f"{name!r} is a DTensor ({', '.join(map(str, tensor.placements))} over {tensor.device_mesh.size()} "
                "ranks), as parallelize_module creates them: its operations communicate, and the schedule is for a "
                "model with plain tensors only\n  plan the model after parallelize_module, and apply that file; or "
                "apply this one to parts whose parameters are plain"
            )
    return None
