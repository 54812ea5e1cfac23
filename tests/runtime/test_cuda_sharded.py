"""Plans for parameters that FSDP2 shards, on one CUDA device: gradients are eager's, and the peak is the planned one."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

import remate
from remate.capture.cuda.versions import release
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import apply

from .small import data

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
    pytest.mark.skipif(release(torch.__version__) < (2, 13), reason="fully_shard has other objects"),
]
RANKS = 8


class Deep(nn.Module):
    """Blocks of 8 MiB and a loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)]
        self.blocks, self.head = nn.Sequential(*layers), nn.Linear(512, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x)).square().mean()


def sharded(model: Deep, device: str) -> Deep:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def as_eager(rank: int, folder: str, device: str, backend: str) -> None:
    """A group of one rank. Weights after three steps are those without a schedule."""
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=1)
    try:
        torch.manual_seed(0)
        eager, x = Deep().to(device), data(2048, 512).to(device)
        schedule = remate.plan(eager, (x,), budget="75%", cost="h100" if device == "cuda" else "cpu", progress=None)
        wanted = sharded(copy.deepcopy(eager), device)
        planned = sharded(apply(copy.deepcopy(eager), schedule), device)
        for model in (wanted, planned):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                model(x).backward()
                optimizer.step()
                optimizer.zero_grad()
        for found, parameter in zip(planned.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(found.to_local(), parameter.to_local(), rtol=1e-4, atol=1e-6)  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()


def holds_the_peak(rank: int, budget: str, device: str) -> None:
    """One of eight ranks whose collectives move nothing, but whose buffers are real."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    try:
        model, x = Deep().to(device), data(2048, 512).to(device)
        options = {"fsdp": "blocks.*", "shards": RANKS, "cost": "h100" if device == "cuda" else "cpu"}
        schedule = remate.plan(model, (x,), budget=budget, progress=None, **options)  # type: ignore[arg-type]
        with mock.patch("remate_runtime.applied.dispatch.agree"):  # no other rank would answer
            planned = sharded(apply(model, schedule), device)
            for _ in range(3):
                planned.zero_grad()
                peak = peak_bytes(lambda: planned(x).backward(), device)
        # a workspace of cuBLAS may be allocated beside
        assert peak == pytest.approx(schedule.peak_bytes, rel=0.01, abs=1 << 20), (peak, schedule.peak_bytes)
    finally:
        dist.destroy_process_group()


def test_weights_are_those_of_eager(tmp_path):
    spawn(as_eager, (str(tmp_path), "cuda", "nccl"), nprocs=1)


@pytest.mark.parametrize("budget", ["100%", "75%"])
def test_the_peak_of_a_rank_is_the_planned_one(budget):
    spawn(holds_the_peak, (budget, "cuda"), nprocs=1)
