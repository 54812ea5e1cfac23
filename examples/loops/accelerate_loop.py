"""accelerate: a model with a schedule is prepared as any other; autocast and accumulation are accelerate's.

python examples/loops/accelerate_loop.py model.schedule.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from remate_runtime import apply


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def train(model: Any) -> float:
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
    loss = torch.tensor(0.0)
    for _ in range(4):
        with accelerator.accumulate(model):
            loss = model(torch.randn(512, 64, device=accelerator.device)).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def main(path: str) -> None:
    if not Path(path).exists():
        import remate

        model = build()
        with remate.record(model, stop=True) as call:  # before `prepare`, so that accelerate's autocast is seen
            train(model)
        remate.plan(call, budget="70%").save(path)
    print(f"loss {train(apply(build(), path)):.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
