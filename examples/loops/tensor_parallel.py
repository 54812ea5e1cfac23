"""Tensor parallelism with one schedule for all blocks: `parallelize_module` first, then the schedule on each block.

    torchrun --nproc-per-node 2 examples/loops/tensor_parallel.py block.schedule.json

The ranks do the same step on their parts of the weights, so rank 0 plans for all of them. With more than two ranks,
FSDP2 shards the blocks over the second dimension of the mesh.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from remate_runtime import apply

COLLECTIVES = ("_c10d_functional",)  # torch's collectives, which a schedule may run only where it is permitted


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main(path: str) -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{rank}" if kind == "cuda" else "cpu")
    parts = 2 if ranks % 2 == 0 else ranks  # of each weight
    mesh = init_device_mesh(kind, (ranks // parts, parts), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(4)]).to(device)
    for block in model:
        parallel = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh["tp"], parallel)
    if rank == 0 and not Path(path).exists():
        import remate

        hidden = torch.zeros(8, 256 // parts, 64, device=device, requires_grad=True)  # of each rank: its part of axis 1
        remate.plan(model[0], (hidden,), budget="80%").save(path)
    dist.barrier()
    for at in range(4):
        model[at] = apply(model[at], path, namespaces=COLLECTIVES)
        if ranks > parts:
            fully_shard(model[at], mesh=mesh["dp"])
    if ranks > parts:
        fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + rank)
    loss = torch.tensor(0.0)
    for _ in range(4):
        loss = model(torch.randn(8, 256 // parts, 64, device=device, requires_grad=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {rank}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
