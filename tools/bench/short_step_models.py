"""Small networks of many architectures, whose steps have less than about 1,000 operations, for `planning_time`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.models import ZOO
from tests.models.case import Built

VOCABULARY = 512


def _ids(batch: int = 2, tokens: int = 64) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, tokens))


def _images(batch: int = 2, size: int = 32) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def _language(kind: str, tokens: int = 64, **config: Any) -> Callable[[], Built]:
    """A causal language model of transformers with labels. kind: prefix of its classes."""

    def build() -> Built:
        import transformers

        ids = _ids(tokens=tokens)
        named = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **{"use_cache": False, **config})
        model = getattr(transformers, f"{kind}ForCausalLM")(named)
        return model.train(), (), {"input_ids": ids, "labels": ids}

    return build


def _masked(kind: str, head: str = "ForMaskedLM", **config: Any) -> Callable[[], Built]:
    def build() -> Built:
        import transformers

        ids = _ids()
        named = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **config)
        return getattr(transformers, kind + head)(named).train(), (), {"input_ids": ids, "labels": ids}

    return build


def _vision(kind: str, **config: Any) -> Callable[[], Built]:
    def build() -> Built:
        import transformers

        model = getattr(transformers, f"{kind}ForImageClassification")(
            getattr(transformers, f"{kind}Config")(num_labels=2, **config)
        )
        size = config.get("image_size", 32)
        return model.train(), (), {"pixel_values": _images(size=size), "labels": torch.zeros(2, dtype=torch.long)}

    return build


def _encoder(layers: int) -> Callable[[], Built]:
    def build() -> Built:
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.1)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), (torch.randn(4, 64, 64),), {}

    return build


class Unrolled(nn.Module):
    """A cell that runs once for each step of a sequence."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(x.shape[1], 16)
        long = isinstance(self.cell, nn.LSTMCell)
        state: Any = (zeros, zeros) if long else zeros
        outputs = []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0] if long else state)
        return self.head(torch.stack(outputs))


def _unrolled(cell: Callable[[int, int], nn.Module], steps: int) -> Callable[[], Built]:
    return lambda: (Unrolled(cell(16, 16)), (torch.randn(steps, 4, 16),), {})


_SMALL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_GATED: dict[str, Any] = {**_SMALL, "intermediate_size": 128, "num_key_value_heads": 2}
MODELS: dict[str, Callable[[], Built]] = {
    **{name: case.build for name, case in ZOO.items()},
    "encoder": _encoder(6),
    "encoder-12": _encoder(12),
    "lstm-cells": _unrolled(nn.LSTMCell, 40),
    "gru-cells": _unrolled(nn.GRUCell, 12),
    "rnn-cells": _unrolled(nn.RNNCell, 40),
    "mamba": _language("Mamba", tokens=14, hidden_size=64, num_hidden_layers=2, state_size=8),
    "falcon": _language("Falcon", **_SMALL),
    "gpt-neox": _language("GPTNeoX", **_SMALL, intermediate_size=128),
    "gpt-neo": _language(
        "GPTNeo", hidden_size=64, num_layers=4, num_heads=4, attention_types=[[["global", "local"], 2]]
    ),
    "opt": _language("OPT", **_SMALL, ffn_dim=128, word_embed_proj_dim=64),
    "bloom": _language("Bloom", hidden_size=64, n_layer=4, n_head=4),
    "mistral": _language("Mistral", **_GATED),
    "qwen2": _language("Qwen2", **_GATED),
    "gemma": _language("Gemma", **_GATED, head_dim=16),
    "phi": _language("Phi", **_GATED),
    "stablelm": _language("StableLm", **_GATED),
    "distilbert": _masked("DistilBert", dim=64, n_layers=4, n_heads=4, hidden_dim=128),
    "albert": _masked("Albert", **_SMALL, intermediate_size=128, embedding_size=32),
    "electra": _masked("Electra", **_SMALL, intermediate_size=128, embedding_size=32),
    "roberta": _masked("Roberta", **_SMALL, intermediate_size=128),
    "bart": _masked(
        "Bart",
        "ForConditionalGeneration",
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        use_cache=False,
    ),
    "convnext": _vision("ConvNext", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 3, 1]),
    "swin": _vision("Swin", embed_dim=24, depths=[2, 2], num_heads=[2, 4], image_size=32, patch_size=2, window_size=4),
}
