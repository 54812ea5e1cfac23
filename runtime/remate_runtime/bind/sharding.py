"""Models whose parameters torch distributes: what a schedule of the whole model cannot run, and the way that works.

torch's modules for it are looked up, never imported: what nobody imported has sharded nothing.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ..errors import BindError


def refuse_sharded(model: nn.Module) -> None:
    """Raise BindError for a model that was sharded before a schedule is applied to it."""
    told = _parts(model) or _tensors(model)
    if not told and is_fsdp2(model):
        told = "fully_shard (FSDP2) has sharded this model already\n  apply the schedule first: fully_shard(apply(model, …))"
    if told:
        raise BindError(told)


def refuse_sharded_since(model: nn.Module) -> None:
    """The same of a model that a schedule was applied to: it may be sharded as a whole."""
    told = _parts(model) or _tensors(model)
    if told:
        raise BindError(told)


def is_fsdp2(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on this module."""
    kind = _kind("torch.distributed.fsdp", "FSDPModule")
    return kind is not None and isinstance(module, kind)


def is_distributed(tensor: Any) -> bool:
    """Whether a tensor is a DTensor: each rank has a part of it, or a copy that torch keeps equal."""
    kind = _kind("torch.distributed.tensor", "DTensor")
    return kind is not None and isinstance(tensor, kind)


def _kind(module: str, name: str) -> type | None:
    found = vars(sys.modules.get(module, torch)).get(name)
    return found if isinstance(found, type) else None


def _parts(model: nn.Module) -> str | None:
    """Of submodules that FSDP wraps: a step calls none of them, so nothing would gather their parameters."""
    fsdp1 = _kind("torch.distributed.fsdp", "FullyShardedDataParallel")
    for path, module in model.named_modules():
        if path and is_fsdp2(module):
            return _blocks_first(path, "fully_shard (FSDP2)", "block = apply(block, file); fully_shard(block)")
        if fsdp1 is not None and isinstance(module, fsdp1):
            return _blocks_first(path, "FullyShardedDataParallel", "FullyShardedDataParallel(apply(block, file))")
    return None


def _blocks_first(path: str, who: str, how: str) -> str:
    return (
        f"{who} gathers the parameters of {path or 'the model'!r} when that is called, and a schedule of the whole model "
        f"calls no part of it\n  plan one block, put what apply gives for each in its place, and shard that: {how}; "
        "or shard the model as a whole, after apply"
    )


def _tensors(model: nn.Module) -> str | None:
    """Of tensor parallelism. What FSDP2 sharded with the model as a whole is gathered again when the model is called."""
    if is_fsdp2(model):
        return None
    named: list[tuple[str, Any]] = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        if is_distributed(tensor):
            return (
                f"{name!r} is a DTensor ({', '.join(map(str, tensor.placements))} over {tensor.device_mesh.size()} ranks), as "
                "parallelize_module makes them: its operations communicate, and a schedule has operations of plain tensors "
                "alone\n  apply schedules to parts whose parameters are plain; of the rest, torch.utils.checkpoint can rerun "
                "what it is put around; for ranks that share the batch use DistributedDataParallel or fully_shard"
            )
    return None
