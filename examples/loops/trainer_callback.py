"""Hugging Face Trainer, from a callback: the schedule comes in when training begins, whoever makes the Trainer.

    python examples/loops/trainer_callback.py backbone.schedule.json

A callback cannot put another model in place of the Trainer's, but a part of it: the backbone
(`model.base_model_prefix`), which holds nearly all that backward needs. Without a file, the first step is recorded and
planned, and the next ones run by it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from remate_runtime import apply

LENGTH, BATCH = 32, 4


class ScheduleCallback(TrainerCallback):
    """path: the schedule file. budget: used for planning if the file does not exist."""

    def __init__(self, path: str, budget: str = "60%") -> None:
        self.path, self.budget = Path(path), budget
        self.recording: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.path.exists():
            self.put_in(model)
            return
        import remate

        self.recording = remate.record(getattr(model, model.base_model_prefix))
        self.call = self.recording.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.recording is None:
            return
        import remate

        self.recording.__exit__(None, None, None)
        self.recording = None
        remate.plan(self.call, budget=self.budget).save(str(self.path))
        self.put_in(model)

    def put_in(self, model: Any) -> None:
        part = model.base_model_prefix
        setattr(model, part, apply(getattr(model, part), self.path, otherwise="original"))


def build() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 128, "n_positions": LENGTH}
    return GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))


def main(path: str) -> None:
    model = build()
    rows = [{"input_ids": (ids := torch.randint(128, (LENGTH,))), "labels": ids} for _ in range(4 * BATCH)]
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
        callbacks: Any = [ScheduleCallback(path)]
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)  # type: ignore[arg-type]
        print(f"loss {trainer.train().training_loss:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
