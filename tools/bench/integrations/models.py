"""Small models and batches that every loop trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH, CLASSES, ROWS = 32, 4, 192


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Classifier(nn.Module):
    """Returns its loss, as models of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*[Block() for _ in range(3)]), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.blocks(x))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


def batches(count: int = 4, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    of = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(ROWS, WIDTH, generator=of),
            "labels": torch.randint(0, CLASSES, (ROWS,), generator=of),
        }
        for _ in range(count)
    ]


def language_model() -> Any:
    """A GPT-2 without dropout rates of its own: they stay as the config has them."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=0)
    ).train()


def texts(count: int, varied: bool = True) -> list[dict[str, torch.Tensor]]:
    of = torch.Generator().manual_seed(0)
    lengths = [24 + (7 * at) % 20 if varied else 32 for at in range(count)]
    return [{"input_ids": torch.randint(1, 64, (length,), generator=of)} for length in lengths]


def collated(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Padded to the longest row."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.int64), torch.zeros(len(rows), longest, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for at, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[at, :length] = labels[at, :length] = row["input_ids"]
        mask[at, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
