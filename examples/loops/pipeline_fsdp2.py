"""A pipeline whose stages FSDP2 shards: `remate.plan_pipeline` with `fsdp` and `shards`, `apply`, then `fully_shard`.

    torchrun --nproc-per-node 4 examples/loops/pipeline_fsdp2.py stages

The ranks are a mesh of 2 stages by 2 shards. Rank 0 plans all stages for 85% of the largest rank's peak without
recomputation, which includes what FSDP2 holds. Parameters stay gathered from microbatch to microbatch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from remate_runtime import apply

MICROBATCHES, ROWS, STAGES = 4, 256, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def stages() -> tuple[list[tuple[nn.Module, tuple[torch.Tensor]]], Callable[..., torch.Tensor], torch.Tensor]:
    """Return the stages with one microbatch each, the loss function, and a microbatch of targets."""
    torch.manual_seed(0)
    modules = [nn.Sequential(*[Block() for _ in range(3)]) for _ in range(STAGES)]
    return [(module, (torch.randn(ROWS, 64),)) for module in modules], nn.functional.mse_loss, torch.randn(ROWS, 64)


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (STAGES, dist.get_world_size() // STAGES), mesh_dim_names=("pp", "dp"))
    at = mesh["pp"].get_local_rank()
    built, loss_fn, target = stages()
    if dist.get_rank() == 0 and not Path(folder, "stage0.json").exists():
        import remate

        options = {"fsdp": "*", "shards": mesh["dp"].size(), "cost": "cpu", "effort": "quick"}
        remate.plan_pipeline(built, "1F1B", MICROBATCHES, budget="85%", loss=(loss_fn, target), **options).save(folder)
    dist.barrier()
    module = apply(built[at][0], Path(folder, f"stage{at}.json"))
    for block in module:
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    stage = PipelineStage(module, at, STAGES, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    torch.manual_seed(1 + mesh["dp"].get_local_rank())
    losses: list[torch.Tensor] = []
    for _ in range(4):
        x, target = torch.randn(MICROBATCHES * ROWS, 64), torch.randn(MICROBATCHES * ROWS, 64)
        schedule.step(*([x] if at == 0 else []), **({"target": target, "losses": losses} if at else {}))
        optimizer.step()
        optimizer.zero_grad()
    if at == STAGES - 1:
        print(f"rank {dist.get_rank()}: loss {torch.stack(losses).mean().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
