"""`remate.auto` on several ranks: one plans, the others read; a wrapper before or after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import remate
from remate.training import state_of
from remate_runtime import BindError

from ..runtime.small import data, seeded

OPTIONS: dict[str, Any] = {"budget": "95%", "cost": "cpu", "effort": "quick", "dims": None, "progress": None}


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(width, width), nn.GELU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Checking(Net):
    """Cannot be captured as a whole, so its body is planned."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.isnan().any():
            raise ValueError("not a number")
        return super().forward(x)


def _train(model: Any, rank: int, width: int = 16) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        model(data(64, width, seed=7 * rank + step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [t.tolist() for t in model.state_dict().values()]


def _rank(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        wanted = _train(DistributedDataParallel(seeded(Net()).train()), rank)
        planned = []
        for name, wrap, kind in (("after", True, Net), ("before", False, Checking)):
            model = seeded(kind()).train()
            options = dict(OPTIONS, file=f"{folder}/{name}.json")
            if wrap:
                wrapped = DistributedDataParallel(remate.auto(model, **options))
            else:
                wrapped = DistributedDataParallel(model)
                assert remate.auto(wrapped, **options) is wrapped
            assert _train(wrapped, rank) == wanted
            state = state_of(model)
            assert state is not None
            assert state.outcome.schedules
            planned.append(state.outcome.planned)
            assert Path(folder, f"{name}.json").exists()
        dist.barrier()
        everywhere: list[Any] = [None] * world
        dist.all_gather_object(everywhere, planned)
        assert [sum(ranks) for ranks in zip(*everywhere, strict=True)] == [1, 1]
        width = 16 + 8 * rank  # stages of a pipeline: each rank has a model of its own, and plans it
        stage = remate.auto(seeded(Net(width)).train(), **OPTIONS)
        assert _train(stage, rank, width) == _train(seeded(Net(width)).train(), rank, width)
        dist.barrier()
        _late(rank)
        dist.barrier()
        mesh, model = init_device_mesh("cpu", (world,)), remate.auto(seeded(Net()).train(), **OPTIONS)
        fully_shard(model.body, mesh=mesh)
        sharded = fully_shard(model, mesh=mesh)
        with pytest.raises(
            BindError,
            match=r"has sharded parts of this model before its first training call.*\n.*remate\.plan\(model, args, fsdp=",
        ):
            sharded(data(64, 16))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _late(rank: int) -> None:
    """A rank that does not get its plan in time says who was to make it."""
    model = remate.auto(seeded(Net(4)).train(), **dict(OPTIONS, timeout=0.3, name="late"))
    state = state_of(model)
    assert state is not None
    if rank == 0:
        own = state._own
        state._own = lambda call: time.sleep(3) or own(call)  # type: ignore[func-returns-value, method-assign]
        model(data(64, 4))
    else:
        time.sleep(1)
        with pytest.raises(remate.RemateError, match=r"rank 1 has waited 0.3 s for rank 0 to plan the Net\n.*timeout="):
            model(data(64, 4))


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_one_rank_plans_for_all(tmp_path: Path) -> None:
    spawn(_rank, (2, str(tmp_path)), nprocs=2)
