"""DistributedDataParallel: rank 0 plans, all ranks read the one file; buckets are reduced while backward runs.

torchrun --nproc-per-node 2 examples/loops/ddp.py model.schedule.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from remate_runtime import apply


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def main(path: str) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device(f"cuda:{dist.get_rank()}" if torch.cuda.is_available() else "cpu")
    if dist.get_rank() == 0 and not Path(path).exists():
        import remate

        remate.plan(build().to(device), (torch.zeros(512, 64, device=device),), budget="70%").save(path)
    dist.barrier()
    planned = DistributedDataParallel(apply(build().to(device), path))  # the schedule first, then the wrapper
    optimizer = torch.optim.SGD(planned.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    loss = torch.tensor(0.0)
    for _ in range(4):
        loss = planned(torch.randn(512, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
