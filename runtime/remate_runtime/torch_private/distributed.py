"""Private parts of `torch.distributed`: DTensors from local tensors, caches of rules, groups, their store, pipelines.

Everything is imported when it is used: what nobody imported has distributed nothing.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Generator, Sequence
from typing import Any

import torch

__all__ = ["clear_dtensor_caches", "dtensor_of", "group_ranks", "group_store", "pipeline_actions", "pretended_ranks"]


def dtensor_of(local: torch.Tensor, mesh: Any, placements: tuple[Any, ...], meta: Any) -> Any:
    """Return a DTensor without communication.

    Args:
        local: The local tensor.
        mesh: The device mesh.
        placements: One for each dimension of the mesh.
        meta: Shape, strides and dtype of the whole, as in `DTensor._spec.tensor_meta`.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    tensor_class: Any = DTensor
    return tensor_class(local, DTensorSpec(mesh, placements, meta), requires_grad=local.requires_grad)


def clear_dtensor_caches() -> None:
    """Empty the caches of DTensor's rules, which may hold what follows from the coordinates of a rank."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed.tensor"):
            for obj in list(vars(module).values()):
                if isinstance(obj, functools._lru_cache_wrapper):
                    obj.cache_clear()


def group_ranks(name: str) -> Sequence[int]:
    """Return the ranks of the process group with this name."""
    from torch.distributed import distributed_c10d

    private: Any = distributed_c10d
    return private.get_process_group_ranks(private._resolve_process_group(name))


def group_store(prefix: str) -> Any:
    """Return the key-value store that all ranks share, under a prefix."""
    from torch.distributed import distributed_c10d

    private: Any = distributed_c10d
    return private.PrefixStore(prefix, private._get_default_store())


@contextlib.contextmanager
def pretended_ranks(count: int) -> Generator[None]:
    """Let this process be rank 0 of a process group without other ranks. Its collectives do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    sys.excepthook = hook  # torch's, which starts each line of a traceback with the rank, outlives the group
    try:
        yield
    finally:
        dist.destroy_process_group()


def pipeline_actions(schedule: str, ranks: int, microbatches: int, stages_per_rank: int) -> Sequence[Sequence[Any]]:
    """Return the actions of a pipeline schedule, by rank. Needs no process group.

    Args:
        schedule: Name of the schedule as in `torch.distributed.pipelining.schedules.get_schedule_class`.
        ranks: Number of ranks.
        microbatches: Number of microbatches.
        stages_per_rank: Number of stages on each rank.
    """
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    return get_schedule_ops(schedule, ranks, microbatches, stages_per_rank)
