"""The networks of the table of low budgets, on the meta device: architectures at the sizes of their papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models import ZOO
from tests.models.case import Built
from tests.models.convolutional import ConvNet, conv_bn

from .models import LARGE, Bottleneck, on_meta

IMAGE = 224


def _images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, IMAGE, IMAGE)


def _resnet50() -> Built:
    stem = nn.Sequential(conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            blocks.append(Bottleneck(inputs, 64 << stage, 2 if stage and not index else 1))
            inputs = 256 << stage
    return ConvNet(stem, blocks, inputs, 1000), (_images(64),), {}


class DenseLayer(nn.Module):
    """Norm, ReLU, 1×1 and norm, ReLU, 3×3 over all earlier outputs of its block."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(inputs), nn.BatchNorm2d(4 * growth)
        self.reduce = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.spatial = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, before: Sequence[torch.Tensor]) -> torch.Tensor:
        narrow = self.reduce(F.relu(self.first(torch.cat(list(before), 1)), inplace=True))
        return self.spatial(F.relu(self.second(narrow), inplace=True))


class DenseBlock(nn.Module):
    """Each layer reads the outputs of all layers before it."""

    def __init__(self, layers: int, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + n * growth, growth) for n in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x]
        for layer in self.layers:
            states.append(layer(states))
        return torch.cat(states, 1)


class Transition(nn.Sequential):
    """Halves channels, height and width."""

    def __init__(self, inputs: int) -> None:
        conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)
        super().__init__(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), conv, nn.AvgPool2d(2))


def _densenet121() -> Built:
    stem = nn.Sequential(conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    width = 64
    for number, layers in enumerate((6, 12, 24, 16)):
        blocks.append(DenseBlock(layers, width, 32))
        width += 32 * layers
        if number < 3:
            blocks.append(Transition(width))
            width //= 2
    blocks += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return ConvNet(stem, blocks, width, 1000), (_images(32),), {}


def _llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    size: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 5504, "vocab_size": 32000}
    config = LlamaConfig(num_hidden_layers=32, num_attention_heads=32, use_cache=False, **size)
    ids = torch.zeros(8, 2048, dtype=torch.long)
    model: nn.Module = LlamaForCausalLM(config)
    return model.bfloat16(), (), {"input_ids": ids, "labels": ids}


def _swin() -> Built:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32], image_size=IMAGE)
    return SwinForImageClassification(config), (), _classified(32)


def _convnext() -> Built:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[128, 256, 512, 1024], depths=[3, 3, 27, 3], drop_path_rate=0.0)
    return ConvNextForImageClassification(config), (), _classified(32)


def _classified(count: int) -> dict[str, Any]:
    return {"pixel_values": _images(count), "labels": torch.zeros(count, dtype=torch.long)}


def _mamba() -> Built:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(num_hidden_layers=4, hidden_size=768, state_size=16, use_cache=False, vocab_size=32000)
    ids = torch.zeros(8, 128, dtype=torch.long)
    return MambaForCausalLM(config), (), {"input_ids": ids, "labels": ids}


class Unrolled(nn.Module):
    """An LSTM as a loop over time, one cell a step."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.cell, self.head = (
            nn.Embedding(vocab, width),
            nn.LSTMCell(width, width),
            nn.Linear(width, vocab),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = None
        states = []
        for x in self.embed(ids[:, :-1]).unbind(1):
            state = self.cell(x, state)
            states.append(state[0])
        return F.cross_entropy(self.head(torch.stack(states, 1)).flatten(0, 1), ids[:, 1:].flatten())


def _lstm() -> Built:
    return Unrolled(512, 1000), (torch.zeros(64, 201, dtype=torch.long),), {}


def _zoo(name: str, **size: int) -> Callable[[], Built]:
    return lambda: ZOO[name].build("meta", **size)


MODELS: dict[str, tuple[str, Callable[[], Built]]] = {
    "gpt2": (LARGE["gpt2"].describe, LARGE["gpt2"].build),
    "gpt2-xl": (LARGE["gpt2-xl"].describe, LARGE["gpt2-xl"].build),
    "t5": (LARGE["t5"].describe, LARGE["t5"].build),
    "resnet50": ("ResNet-50, 64 images of 224×224", on_meta(_resnet50)),
    "resnet101": (LARGE["resnet101"].describe, LARGE["resnet101"].build),
    "unet": (LARGE["unet"].describe, LARGE["unet"].build),
    "llama": ("Llama, 32 layers of 2048, 8×2048 tokens, bf16", on_meta(_llama)),
    "vit": (
        "ViT-L/16, 24 layers of 1024, 32 images of 224×224",
        _zoo("vit", layers=24, width=1024, heads=16, batch=32, image=IMAGE, patch=16),
    ),
    "swin": ("Swin-B, 32 images of 224×224", on_meta(_swin)),
    "convnext": ("ConvNeXt-B, 32 images of 224×224", on_meta(_convnext)),
    "fourier": (LARGE["fourier"].describe, LARGE["fourier"].build),
    "densenet121": ("DenseNet-121, 32 images of 224×224", on_meta(_densenet121)),
    "mamba": ("Mamba, 4 layers of 768, 8×128 tokens, the scan unrolled", on_meta(_mamba)),
    "lstm": ("LSTM cell of 512, 64 sequences of 200 steps, unrolled", on_meta(_lstm)),
}
