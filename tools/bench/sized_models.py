"""Small models of common kinds, each with the sizes of its schedule."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Case(msgspec.Struct, frozen=True):
    """make: the model. call: of it at sizes, in the order of `names`. dims: for `plan`. planned: sizes of the example.
    at: sizes that should be tried, among others: odd ones, and those of heads or channels. budget: of the peak without
    recomputation; estimated: where workspaces are those of the roofline model, which are too large."""

    make: Callable[[], nn.Module]
    call: Callable[..., Call]
    dims: dict[str, Any]
    planned: tuple[int, ...]
    at: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ("b", "t")
    budget: str = "70%"
    estimated: str = "70%"


def tokens(*shape: int, most: int = 64) -> torch.Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(sum(shape)))


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def gpt2() -> nn.Module:
    import transformers

    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 64, "n_positions": 64, "use_cache": False}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **small))
    model.loss_type = "ForCausalLM"
    return model


_SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def bert() -> nn.Module:
    import transformers

    return transformers.BertForMaskedLM(transformers.BertConfig(max_position_embeddings=64, **_SMALL))


def llama() -> nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_key_value_heads=2, max_position_embeddings=64, use_cache=False, **_SMALL)
    )


def t5() -> nn.Module:
    import transformers

    small: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config: Any = transformers.T5Config(use_cache=False, **small)
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    import transformers

    small = {key: value for key, value in _SMALL.items() if key != "vocab_size"}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **small))


class Scored(nn.Module):
    """A network with its loss, so that nothing outside the step takes memory."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images).pow(2).mean()


def example(name: str) -> nn.Module:
    module = importlib.import_module(f"examples.{name}")
    kinds = {"unet": lambda: module.UNet(widths=(8, 16, 24)), "resnet": lambda: module.ResNet(widths=(8, 16), depth=1)}
    return Scored(kinds[name]())


class MixerBlock(nn.Module):
    """One layer across `tokens` patches, and one across the `width` channels of each patch."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_across, self.norm_within = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, tokens))
        self.within = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norm_across(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm_within(x))


class Mixer(nn.Module):
    """MLP-Mixer over patches of images."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock(16, 12) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.patches(images).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1)).pow(2).mean()


def masked(b: int, t: int) -> Call:
    mask = torch.ones(b, t, dtype=torch.int64)
    mask[:, -1] = 0
    return (), {"input_ids": tokens(b, t), "attention_mask": mask, "labels": tokens(b, t)}


TEXT: dict[str, Any] = {name: {0: "b=2..6", 1: "t=2..48"} for name in ("input_ids", "labels")}
MASKED = TEXT | {"attention_mask": {0: "b", 1: "t"}}
LENGTHS = ((4, 2), (4, 4), (3, 7), (2, 31), (3, 16), (4, 17), (3, 29), (5, 33))
CASES = {
    "gpt2": Case(gpt2, lambda b, t: ((), {"input_ids": tokens(b, t), "labels": tokens(b, t)}), TEXT, (4, 32), LENGTHS),
    "bert": Case(bert, masked, MASKED, (4, 32), LENGTHS),
    "llama": Case(llama, masked, MASKED, (4, 32), LENGTHS),
    "t5": Case(
        t5,
        lambda b, t, s: ((), {"input_ids": tokens(b, t), "labels": tokens(b, s)}),
        {"input_ids": {0: "b=2..6", 1: "t=2..40"}, "labels": {0: "b", 1: "s=2..24"}},
        (4, 24, 16),
        ((4, 2, 16), (3, 24, 5), (2, 7, 16), (3, 11, 11)),
        ("b", "t", "s"),
    ),
    "vit": Case(
        vit,
        lambda b: ((), {"pixel_values": noise(b, 3, 16, 16), "labels": tokens(b, most=2)}),
        {"pixel_values": {0: "b=2..32"}, "labels": {0: "b"}},
        (16,),
        ((3,), (4,), (7,), (17,)),
        ("b",),
        estimated="97%",
    ),
    "mixer": Case(
        Mixer,
        lambda b: ((noise(b, 3, 16, 16),), {}),
        {"images": {0: "b=2..32"}},
        (16,),
        ((3,), (7,), (12,)),
        ("b",),
        estimated="80%",
    ),
    "unet": Case(
        lambda: example("unet"),
        lambda b, h, w: ((noise(b, 3, h, w),), {}),
        {"images": {0: "b=2..6", 2: "h=8..48/8", 3: "w=8..48/8"}},
        (4, 32, 24),
        ((3, 8, 40), (2, 24, 16), (3, 40, 24)),
        ("b", "h", "w"),
    ),
    "resnet": Case(
        lambda: example("resnet"),
        lambda b, h, w: ((noise(b, 3, h, w),), {}),
        {"images": {0: "b=2..6", 2: "h=8..40", 3: "w=8..40"}},
        (4, 32, 24),
        ((3, 9, 31), (2, 25, 16), (5, 33, 17)),
        ("b", "h", "w"),
        estimated="90%",
    ),
}
