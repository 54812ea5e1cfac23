"""Lightning: the schedule is applied to the model inside the LightningModule, which stays what it is.

python examples/loops/lightning_loop.py model.schedule.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn

from remate_runtime import apply


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 1))


class Training(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def train(model: nn.Module) -> None:
    data: Any = torch.utils.data.DataLoader([torch.randn(512, 64) for _ in range(4)], batch_size=None)  # type: ignore
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = lightning.Trainer(max_epochs=1, precision="bf16-mixed", accumulate_grad_batches=2, **quiet)
    trainer.fit(Training(model), data)


def main(path: str) -> None:
    if not Path(path).exists():
        import remate

        model = build()
        with remate.record(model, stop=True) as call:
            train(model)
        remate.plan(call, budget="70%").save(path)
    model = build()
    train(apply(model, path))
    print(f"output {model(torch.zeros(512, 64)).mean().item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
