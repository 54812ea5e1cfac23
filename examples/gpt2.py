"""A GPT-2 of 12 layers from `transformers`, with dropout, its loss inside the model."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import remate_runtime

SCHEDULE = Path(__file__).with_name("gpt2.json")
CONFIG = GPT2Config(
    n_layer=12,
    n_embd=256,
    n_head=4,
    vocab_size=8192,
    n_positions=256,
    bos_token_id=0,
    eos_token_id=0,
    use_cache=False,
)


def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """4 texts of 256 tokens. The model shifts the labels itself."""
    tokens = torch.randint(CONFIG.vocab_size, (4, 256), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def build() -> tuple[torch.nn.Module, tuple, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG).train()
    model.loss_type = "ForCausalLM"  # the default; transformers warns if it is not set
    return model, (), batch(torch.Generator().manual_seed(0))


def main(steps: int = 5) -> None:
    model, args, kwargs = build()
    if not SCHEDULE.exists():  # planned once, and kept with the code
        import remate

        remate.plan(model, args, kwargs, budget="50%", cost="cpu").save(str(SCHEDULE))
    planned = remate_runtime.apply(model, str(SCHEDULE))  # shares the parameters of `model`
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        loss = planned(**batch(generator)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
