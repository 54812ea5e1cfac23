"""Architectures of transformers beyond the zoo: captured steps compute what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.planner.interpreter import compare

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def ids(batch: int = 2, length: int = 12, vocab: int = 64) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length))


def images(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def language(model: str, **sizes: Any) -> Built:
    common = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    config = getattr(transformers, f"{model}Config")(**{**common, **sizes})
    built = getattr(transformers, sizes.pop("kind", f"{model}ForCausalLM"))(config)
    tokens = ids()
    return built, (), {"input_ids": tokens, "labels": tokens, "use_cache": False}


def vision(model: str, size: int = 32, **sizes: Any) -> Built:
    config = getattr(transformers, f"{model}Config")(**sizes, num_labels=5)
    built = getattr(transformers, f"{model}ForImageClassification")(config)
    return built, (), {"pixel_values": images(size), "labels": torch.tensor([0, 3])}


def llama() -> Built:
    return language("Llama", intermediate_size=64, num_key_value_heads=2)


def mistral_window() -> Built:
    return language("Mistral", intermediate_size=64, num_key_value_heads=2, sliding_window=4)


def mixtral() -> Built:
    return language("Mixtral", intermediate_size=64, num_key_value_heads=2, num_local_experts=4)


def qwen2() -> Built:
    return language("Qwen2", intermediate_size=64, num_key_value_heads=2)


def gemma() -> Built:
    return language("Gemma", intermediate_size=64, num_key_value_heads=2, head_dim=8)


def opt() -> Built:
    return language("OPT", ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=32)


def gpt_neox() -> Built:
    return language("GPTNeoX", intermediate_size=64)


def mamba() -> Built:
    return language("Mamba", state_size=4)


def gpt2_padded() -> Built:
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=64, attn_implementation="eager")
    tokens, mask = ids(), torch.ones(2, 12, dtype=torch.long)
    mask[0, 8:] = 0
    return transformers.GPT2LMHeadModel(config), (), {"input_ids": tokens, "labels": tokens, "attention_mask": mask}


def roberta() -> Built:
    built, args, kwargs = language("Roberta", intermediate_size=64, kind="RobertaForMaskedLM")
    return built, args, {**kwargs, "attention_mask": torch.ones(2, 12)} | {"use_cache": None}


def albert() -> Built:
    config = transformers.AlbertConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=64,
        embedding_size=16,
    )
    return transformers.AlbertForMaskedLM(config), (), {"input_ids": ids(), "labels": ids()}


def distilbert() -> Built:
    config = transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=64)
    model = transformers.DistilBertForSequenceClassification(config)
    return model, (), {"input_ids": ids(), "labels": torch.tensor([0, 1])}


def electra() -> Built:
    config = transformers.ElectraConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=64
    )
    return transformers.ElectraForPreTraining(config), (), {"input_ids": ids(), "labels": ids(vocab=2)}


def bart() -> Built:
    layers = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 1), ("ffn_dim", 64))
    }
    config = transformers.BartConfig(
        d_model=32, encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=64, **layers
    )
    model = transformers.BartForConditionalGeneration(config)
    return model, (), {"input_ids": ids(), "labels": ids(), "use_cache": False}


def t5() -> Built:
    config = transformers.T5Config(
        num_layers=2, d_model=32, d_ff=64, d_kv=8, num_heads=4, vocab_size=64, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model, (), {"input_ids": ids(), "labels": ids(), "use_cache": False}


def vit() -> Built:
    return vision("ViT", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)


def swin() -> Built:
    return vision("Swin", 32, depths=[2, 1], num_heads=[2, 4], embed_dim=16, image_size=32, patch_size=4, window_size=4)


def convnext() -> Built:
    return vision("ConvNext", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 16])


def resnet() -> Built:
    return vision("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")


def segformer() -> Built:
    sizes = {"hidden_sizes": [8, 16, 16, 16], "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": 16}
    config = transformers.SegformerConfig(depths=[1] * 4, mlp_ratios=[2] * 4, num_labels=4, **sizes)
    model = transformers.SegformerForSemanticSegmentation(config)
    return model, (), {"pixel_values": images(64), "labels": torch.randint(0, 4, (2, 64, 64))}


def clip() -> Built:
    side = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.CLIPConfig(
        text_config={**side, "vocab_size": 64, "eos_token_id": 63},
        vision_config={**side, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config)
    return model, (), {"input_ids": ids(), "pixel_values": images(), "return_loss": True}


def whisper() -> Built:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64, num_mel_bins=8, max_source_positions=20,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return model, (), {"input_features": torch.randn(2, 8, 40), "labels": ids(), "use_cache": False}


MODELS: tuple[Callable[[], Built], ...] = (
    llama,
    mistral_window,
    mixtral,
    qwen2,
    gemma,
    mamba,
    opt,
    gpt_neox,
    gpt2_padded,
    roberta,
    albert,
    distilbert,
    electra,
    bart,
    t5,
    vit,
    swin,
    convnext,
    resnet,
    segformer,
    clip,
    whisper,
)


@pytest.mark.quick("clip")
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_model(make: Callable[[], Built]) -> None:
    torch.manual_seed(0)
    model, args, kwargs = make()
    compare(model, args, kwargs, 0.0)
