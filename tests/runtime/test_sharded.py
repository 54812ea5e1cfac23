"""Models that torch shards: what cannot run by a schedule is refused with the way that works, never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

import remate
from remate.errors import CaptureError
from remate_runtime import BindError, apply

from .small import data, seeded
from .stepping import schedule_of

needs_ranks = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def fully_sharded(model: Any, blocks: bool) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks if blocks else ():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def flat(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for at, block in enumerate(model.blocks):
        model.blocks[at] = FullyShardedDataParallel(block, device_id=torch.device("cpu"))
    return model


def tensor_parallel(model: Any, hooks: bool = True) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks if hooks else ():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if not hooks:
        model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Shard(0)]))
    return model


def called(model: Any) -> None:
    model(data(4, 8)).sum().backward()


REFUSED: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "blocks, fully_shard": (
        "gathers the parameters of 'blocks.0'",
        lambda m, s: called(fully_sharded(apply(m, s), True)),
    ),
    "fully_shard, apply": ("gathers the parameters of 'blocks.0'", lambda m, s: apply(fully_sharded(m, True), s)),
    "fully_shard, apply with stale": (
        "gathers the parameters of 'blocks.0'",
        lambda m, s: apply(fully_sharded(m, True), s, stale="warn"),
    ),
    "the model, apply": ("apply the schedule first", lambda m, s: apply(fully_sharded(m, False), s)),
    "blocks, FullyShardedDataParallel": ("when that is called", lambda m, s: called(flat(apply(m, s)))),
    "FullyShardedDataParallel, apply": ("when that is called", lambda m, s: apply(flat(m), s)),
    "tensor parallel": ("'blocks.0.up.weight' is a DTensor", lambda m, s: called(tensor_parallel(apply(m, s)))),
    "tensor parallel, apply": ("is a DTensor", lambda m, s: apply(tensor_parallel(m), s, stale="warn")),
    "tensor parallel without hooks": (
        "'head.weight': planned f32[2,8], the model has a DTensor",
        lambda m, s: called(tensor_parallel(apply(m, s), hooks=False)),
    ),
}


def _rank(rank: int, world: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        schedule = schedule_of(seeded(Blocks()), (data(4, 8),))
        for name, (told, act) in REFUSED.items():
            with pytest.raises(BindError) as refused:
                act(seeded(Blocks()), schedule)
            assert told in str(refused.value), name
            assert "\n  " in str(refused.value), name
        with pytest.raises(CaptureError, match="DTensor"):
            remate.plan(tensor_parallel(seeded(Blocks())), (data(4, 8),), budget="100%")
        model, planned = seeded(Blocks()), seeded(Blocks())
        for one in (model, apply(planned, schedule)):
            called(fully_sharded(one, False))
        for found, wanted in zip(planned.parameters(), model.parameters(), strict=True):
            assert torch.equal(found.grad.to_local(), wanted.grad.to_local())
    finally:
        dist.destroy_process_group()


@needs_ranks
def test_refusals(tmp_path):
    spawn(_rank, (1, str(tmp_path)), nprocs=1)


@needs_ranks
@pytest.mark.slow
def test_refusals_of_two_ranks(tmp_path):
    spawn(_rank, (2, str(tmp_path)), nprocs=2)
