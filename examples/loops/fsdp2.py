"""FSDP2 with one schedule for all blocks: it is applied to each block, then `fully_shard` gathers and frees as ever.

    torchrun --nproc-per-node 2 examples/loops/fsdp2.py block.schedule.json

Parameters are cast to bf16 for each call (MixedPrecisionPolicy), so the block is planned in bf16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from remate_runtime import apply


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main(path: str) -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    device = torch.device(f"cuda:{dist.get_rank()}" if kind == "cuda" else "cpu")
    if dist.get_rank() == 0 and not Path(path).exists():
        import remate

        hidden = torch.zeros(2048, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
        remate.plan(Block().to(device, torch.bfloat16), (hidden,), budget="95%").save(path)
    dist.barrier()
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(64, 1)).to(device)
    sharding = {
        "mesh": init_device_mesh(kind, (dist.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    }
    for at in range(4):
        model[at] = fully_shard(apply(model[at], path), **sharding)
    fully_shard(model, **sharding)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    loss = torch.tensor(0.0)
    for _ in range(4):
        loss = model(torch.randn(2048, 64, device=device)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
