"""A pipeline with a schedule for each stage: `remate.plan_pipeline` once, then the schedule on each stage.

    torchrun --nproc-per-node 2 examples/loops/pipeline.py stages

Rank 0 plans all stages, for 80% of the largest rank's peak without recomputation, and writes stages/stage0.json and so
on. From the command line: `remate plan examples/loops/pipeline.py:stages --pipeline 1f1b --microbatches 4 -o stages/`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
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
    rank = dist.get_rank()
    built, loss_fn, target = stages()
    if rank == 0 and not Path(folder, "stage0.json").exists():
        import remate

        loss = (loss_fn, target)
        remate.plan_pipeline(built, "1F1B", MICROBATCHES, budget="80%", loss=loss, cost="cpu").save(folder)
    dist.barrier()
    module = apply(built[rank][0], Path(folder, f"stage{rank}.json"))
    schedule = Schedule1F1B(PipelineStage(module, rank, STAGES, torch.device("cpu")), MICROBATCHES, loss_fn)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    torch.manual_seed(1)
    losses: list[torch.Tensor] = []
    for _ in range(4):
        x, target = torch.randn(MICROBATCHES * ROWS, 64), torch.randn(MICROBATCHES * ROWS, 64)
        schedule.step(*([x] if rank == 0 else []), **({"target": target, "losses": losses} if rank else {}))
        optimizer.step()
        optimizer.zero_grad()
    if rank == STAGES - 1:
        print(f"rank {rank}: loss {torch.stack(losses).mean().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
