"""The loops: each trains the model that it is given, in place, the same way every time."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .models import batches, classifier, collated, language_model, texts


class Loop(NamedTuple):
    """needs: packages beside torch. build: makes the model, the same one every time. train: the loop. dims: for `plan`;
    all calls are within."""

    name: str
    needs: tuple[str, ...]
    build: Callable[[], Any]
    train: Callable[[Any], None]
    dims: dict[str, dict[int, str]] | None = None


def _plain(model: Any) -> None:
    """Accumulation over two batches, clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for at, batch in enumerate(batches()):
        (model(**batch)["loss"] / 2).backward()
        if at % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def _in_backward(model: Any) -> None:
    """One optimizer per parameter, which takes its gradient as soon as it is there."""
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

    def use(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    handles = [p.register_post_accumulate_grad_hook(use) for p in model.parameters()]
    for batch in batches():
        model(**batch)["loss"].backward()
    for handle in handles:
        handle.remove()


def _scaled(model: Any) -> None:
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=256.0)
    for batch in batches():
        with torch.autocast("cpu", torch.float16):
            loss = model(**batch)["loss"]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def _trainer(varied: bool) -> Callable[[Any], None]:
    def train(model: Any) -> None:
        from transformers import Trainer, TrainingArguments

        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                num_train_epochs=1,
                seed=1,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            )
            rows = texts(14 if varied else 16, varied)
            trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collated)  # type: ignore
            trainer.train()

    return train


def _sft(backbone: Any) -> None:
    """TRL replaces the model's forward by one that calls the backbone, which has the schedule."""
    import datasets
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    rows = datasets.Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in texts(16, varied=False)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(output_dir=folder, max_length=32, **_TRL)
        SFTTrainer(_around(backbone), args=arguments, train_dataset=rows, processing_class=_tokenizer()).train()


def _dpo(backbone: Any) -> None:
    """Pairs of varied lengths, chosen and rejected in one batch, beside a reference model."""
    import datasets
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    texts_of_tokens = [" ".join(str(at) for at in row["input_ids"].tolist()) for row in texts(28, varied=True)]
    rows = datasets.Dataset.from_list(
        [
            {"prompt": "3 5 7", "chosen": chosen, "rejected": other}
            for chosen, other in zip(texts_of_tokens[::2], texts_of_tokens[1::2], strict=True)
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(output_dir=folder, **_TRL)
        trainer = DPOTrainer(
            _around(backbone), language_model(), args=arguments, train_dataset=rows, processing_class=_tokenizer()
        )
        trainer.train()


_TRL: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 1,
    "seed": 1,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({str(at): at for at in range(64)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1", unk_token="0")


def _around(backbone: Any) -> Any:
    model = language_model()
    model.transformer, model.lm_head.weight = backbone, backbone.wte.weight
    return model


def _backbone() -> Any:
    return language_model().transformer


def _accelerate(model: Any) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)  # another loop of this process may have set it
    accelerator = Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=2)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
    for batch in batches():
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(**batch)["loss"])
            accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def _lightning(model: Any) -> None:
    import lightning

    class Training(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", self.model(**batch)["loss"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    options: dict[str, Any] = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    data: Any = torch.utils.data.DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **options, **quiet)
    trainer.fit(Training(), data, data)


def _adapted() -> Any:
    import peft

    base = language_model()
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn"], task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config).train()


def _adapters(model: Any) -> None:
    """With a reference of the model without adapters, as preference tuning takes one."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for at in range(3):
        batch = collated(texts(4, varied=False))
        if at:
            with torch.no_grad(), model.disable_adapter():
                model(**batch)
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


LOOPS = (
    Loop("plain loop: accumulation, clipping", (), classifier, _plain),
    Loop("optimizer in backward", (), classifier, _in_backward),
    Loop("AMP (fp16) and GradScaler", (), classifier, _scaled),
    Loop("HF Trainer", ("transformers", "accelerate"), language_model, _trainer(False)),
    Loop(
        "HF Trainer, varied lengths, smaller last batch", ("transformers", "accelerate"), language_model, _trainer(True)
    ),
    Loop(
        "HF Trainer, the same, one file with dims",
        ("transformers", "accelerate"),
        language_model,
        _trainer(True),
        {name: {0: "b=2..4", 1: "t=16..64"} for name in ("input_ids", "attention_mask", "labels")},
    ),
    Loop("TRL SFTTrainer, the backbone", ("transformers", "trl"), _backbone, _sft),
    Loop(
        "TRL DPOTrainer, the backbone, varied lengths",
        ("transformers", "trl"),
        _backbone,
        _dpo,
        {name: {0: "b=2..8", 1: "t=8..64"} for name in ("input_ids", "attention_mask")},
    ),
    Loop("accelerate (bf16), accumulation", ("accelerate",), classifier, _accelerate),
    Loop("Lightning (bf16-mixed), accumulation, clipping", ("lightning",), classifier, _lightning),
    Loop("PEFT LoRA, disable_adapter", ("transformers", "peft"), _adapted, _adapters),
)
