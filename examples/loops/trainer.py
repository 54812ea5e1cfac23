"""Hugging Face Trainer: the step is recorded from the Trainer itself, planned once, and used from then on.

    python examples/loops/trainer.py model.schedule.json

The Trainer passes what no hand-written call has (`num_items_in_batch`) and sets `config.use_cache`, so the call is
taken from it. Batches of other sizes, such as the last one, run the model's own forward (`otherwise="original"`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from remate_runtime import apply

LENGTH, BATCH = 32, 4


def build() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 128, "n_positions": LENGTH}
    return GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))


def train(model: Any) -> float:
    rows = [{"input_ids": (ids := torch.randint(128, (LENGTH,))), "labels": ids} for _ in range(4 * BATCH + 1)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        return Trainer(model=model, args=arguments, train_dataset=rows).train().training_loss  # type: ignore[arg-type]


def main(path: str) -> None:
    if not Path(path).exists():
        import remate

        model = build()
        with remate.record(model, stop=True) as call:  # leaves the loop at the first training call
            train(model)
        remate.plan(call, budget="60%").save(path)
    print(f"loss {train(apply(build(), path, otherwise='original')):.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
