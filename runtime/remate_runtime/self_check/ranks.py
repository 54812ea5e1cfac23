"""The verdict of several ranks. A rank that raises alone leaves the others waiting in their next collective.

Ranks exchange their verdicts through the key-value store of the process group, and not through a collective: a rank
that does not check this call (it is in evaluation mode, or skips a batch) would take part in the wrong one. A rank
waits for the others only where all ranks usually make the same calls:

- of models with DTensors, whose forwards communicate, with and without gradients;
- under FSDP2, where each call gathers parameters anyway, with and without gradients;
- in calls that DistributedDataParallel makes with gradients enabled, without `join()`, of one file of fixed sizes that
refuses other calls.

Elsewhere (evaluation on one rank, files for several sizes, other calls that step aside, pipelines) ranks may check
different calls, and each decides alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..bind.fsdp2 import process_groups
from ..bind.sharding import is_distributed
from ..staleness.attributes import is_fully_shards
from ..support.store_wait import wait_for
from ..torch_private.distributed import group_store
from ..torch_private.execution import active_ddp

TIMEOUT = 60.0  # seconds that a rank waits for the verdicts of the others


def calls_together(model: nn.Module, sharded: bool) -> str:
    """Return what makes all ranks run this very call: "fsdp2", "dtensor", "ddp", or "" if that is not certain.

    Args:
        model: The live model, whose call is running.
        sharded: Whether parts of it are known to be sharded.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    if sharded or any(map(is_fully_shards, vars(model)["_forward_pre_hooks"].values())):
        return "fsdp2"
    if _meshes(model):
        return "dtensor"
    wrapper = active_ddp()
    if wrapper is None or not torch.is_grad_enabled() or wrapper._join_config.enable:
        return ""
    return "ddp" if vars(wrapper.module) is vars(model) else ""  # only some ranks may call a part


def groups_of(model: nn.Module, together: str) -> tuple[Any, ...]:
    """Return the process groups of these ranks.

    Args:
        model: The live model.
        together: The result of `calls_together`.
    """
    if together == "ddp":
        wrapper = active_ddp()
        return (wrapper.process_group,)
    if not together:
        return ()
    groups = [group for state in fsdp2_states(model) for group in process_groups(state)]
    for mesh in _meshes(model):
        groups += [mesh.get_group(at) for at in range(mesh.ndim)]
    return tuple(dict.fromkeys(groups))


def _meshes(model: nn.Module) -> list[Any]:
    """The device meshes of a model's DTensors."""
    tensors: list[Any] = [*model.parameters(), *model.buffers()]
    return list({id(tensor.device_mesh): tensor.device_mesh for tensor in tensors if is_distributed(tensor)}.values())


def fsdp2_states(model: nn.Module) -> list[Any]:
    """Return the states that `fully_shard` keeps for a model and its parts."""
    states: dict[int, Any] = {}
    for module in model.modules():
        for hook in vars(module).get("_forward_pre_hooks", {}).values():
            if is_fully_shards(hook):
                while not hasattr(hook, "__self__"):
                    hook = hook.__wrapped__
                states[id(hook.__self__)] = hook.__self__
    return list(states.values())


class Verdicts:
    """Exchanges verdicts with other ranks. After ranks were missing once, this rank does not wait again.

    Args:
        warn: Gets a text about ranks that were missing.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn, self._timeout = warn, TIMEOUT

    def worst(self, verdict: int, groups: tuple[Any, ...]) -> int:
        """Return the worst verdict of the ranks of all groups that have one in time."""
        own = torch.distributed.get_rank()
        for group in groups:
            store = group_store(f"remate/verdicts/{group.group_name}")
            turn = store.add(f"turn/{own}", 1)
            store.set(f"{turn}/{own}", str(verdict))
            keys = {f"{turn}/{rank}": rank for rank in torch.distributed.get_process_group_ranks(group)}
            missing = wait_for(store, [*keys], self._timeout).missing
            verdict = max(int(store.get(key)) for key in keys if key not in missing)
            if missing and self._timeout:
                absent = ", ".join(str(keys[key]) for key in missing)
                self._warn(
                    f"rank {own} has waited {self._timeout:g} s for the self-check of rank {absent}, which runs another"
                    " call: each rank decides alone from now on\n  check that all ranks train in the same mode and on "
                    "equally many batches"
                )
                self._timeout = 0.0
        return verdict
