"""An encoder-decoder Transformer for sequence to sequence, with dropout and one embedding for both sides."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import remate_runtime

SCHEDULE = Path(__file__).with_name("encoder_decoder.json")
VOCABULARY, LENGTH, WIDTH = 4096, 128, 128


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.transformer = nn.Transformer(
            WIDTH, nhead=4, num_encoder_layers=4, num_decoder_layers=4, dim_feedforward=4 * WIDTH, batch_first=True
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of predicting `labels` from `source` and the previous words of `target`."""
        source, target = (self.embedding(words) + self.position for words in (source, target))
        decoded = self.transformer(source, target, tgt_mask=self.mask, tgt_is_causal=True)
        logits = decoded @ self.embedding.weight.t()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """8 pairs of sentences."""
    source = torch.randint(VOCABULARY, (8, LENGTH), generator=generator)
    translated = torch.randint(VOCABULARY, (8, LENGTH + 1), generator=generator)
    return source, translated[:, :-1].contiguous(), translated[:, 1:].contiguous()


def build() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Translator().train(), batch(torch.Generator().manual_seed(0))


def main(steps: int = 5) -> None:
    model, args = build()
    if not SCHEDULE.exists():  # planned once, then kept with the code
        import remate

        remate.plan(model, args, budget="50%", cost="cpu").save(str(SCHEDULE))
    planned = remate_runtime.apply(model, str(SCHEDULE))  # shares the parameters of `model`
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        loss = planned(*batch(generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
