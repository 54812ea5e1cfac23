"""Models of realistic sizes on the meta device, planned for an absent GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import ZOO
from tests.models.case import Built
from tests.models.convolutional import ConvNet, GroupedBottleneck, conv_bn

IRREGULAR_UNITS = 480  # about 10,000 operations


class Large(msgspec.Struct, frozen=True):
    """describe: size in words. build: returns the model and its inputs, without storage. seconds, gap: the targets of one
    solve, for its time and for its gap as a share of the step's time."""

    name: str
    describe: str
    build: Callable[[], Built]
    seconds: float
    gap: float


def _gpt2(layers: int, width: int, heads: int, batch: int) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = {"n_layer": layers, "n_embd": width, "n_head": heads}
    config = GPT2Config(**size, **{"attn_implementation": "eager", "use_cache": False})
    ids = torch.zeros(batch, 1024, dtype=torch.long)
    model: nn.Module = GPT2LMHeadModel(config)
    return model.bfloat16(), (), {"input_ids": ids, "labels": ids}


def _t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    size: dict[str, Any] = {"num_layers": 12, "num_decoder_layers": 12, "d_model": 768, "d_ff": 3072, "num_heads": 12}
    model: nn.Module = T5ForConditionalGeneration(T5Config(**size, **{"use_cache": False, "decoder_start_token_id": 0}))
    ids = torch.zeros(8, 512, dtype=torch.long)
    return model.bfloat16(), (), {"input_ids": ids, "labels": ids}


class Bottleneck(nn.Module):
    """ResNet's three-convolution block, batch norm, in-place ReLU."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce, self.spatial = conv_bn(inputs, width, 1), conv_bn(width, width, 3, stride)
        self.expand = conv_bn(width, 4 * width, 1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = conv_bn(inputs, 4 * width, 1, stride) if inputs != 4 * width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.expand(self.relu(self.spatial(self.relu(self.reduce(x)))))
        return self.relu(y + self.shortcut(x))


def resnet(stages: tuple[int, ...]) -> ConvNet:
    """ResNet with this number of bottlenecks in each stage."""
    stem = nn.Sequential(conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate(stages):
        for index in range(count):
            blocks.append(Bottleneck(inputs, 64 << stage, 2 if stage and not index else 1))
            inputs = 256 << stage
    return ConvNet(stem, blocks, inputs, 1000)


def _regnet() -> Built:
    """As RegNetY-4GF: 2, 6, 12 and 2 blocks of widths 128 to 1088, groups of 64."""
    blocks: list[nn.Module] = []
    inputs = 32
    for count, outputs in ((2, 128), (6, 192), (12, 512), (2, 1088)):
        for index in range(count):
            blocks.append(GroupedBottleneck(inputs, outputs, 1 if index else 2, 64))
            inputs = outputs
    return (
        ConvNet(nn.Sequential(conv_bn(3, 32, 3, 2), nn.ReLU()), blocks, inputs, 1000),
        (torch.randn(64, 3, 224, 224),),
        {},
    )


class Irregular(nn.Module):
    """Residual units, each with its own width and one of four shapes: no two blocks are equal."""

    def __init__(self, units: int, width: int, chance: random.Random) -> None:
        super().__init__()
        inner = chance.sample(range(width // 2, 4 * width, 4), units)
        self.kinds = [chance.randrange(4) for _ in inner]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in inner)
        self.up = nn.ModuleList(nn.Linear(width, n) for n in inner)
        self.gate = nn.ModuleList(
            nn.Linear(width, n) if kind == 1 else nn.Identity() for n, kind in zip(inner, self.kinds, strict=True)
        )
        self.down = nn.ModuleList(nn.Linear(n, width) for n in inner)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for kind, norm, up, gate, down in zip(self.kinds, self.norms, self.up, self.gate, self.down, strict=True):
            y = norm(x)
            hidden = up(y)
            if kind == 0:
                hidden = F.gelu(hidden)
            elif kind == 1:
                hidden = F.silu(gate(y)) * hidden
            elif kind == 2:
                hidden = F.relu(hidden).square()
            else:
                hidden = hidden * hidden.tanh() + torch.sigmoid(hidden)
            x = x + down(hidden) * 0.5
        return self.head(x).square().mean()


def _irregular() -> Built:
    return Irregular(IRREGULAR_UNITS, 1024, random.Random(0)), (torch.randn(16384, 1024),), {}


def _zoo(name: str, **size: int) -> Callable[[], Built]:
    return lambda: ZOO[name].build("meta", **size)


def on_meta(build: Callable[[], Built]) -> Callable[[], Built]:
    def made() -> Built:
        with torch.device("meta"):
            model, args, kwargs = build()
        return model.train(), args, kwargs

    return made


LARGE: dict[str, Large] = {
    name: Large(name, describe, on_meta(build), seconds, gap)
    for name, describe, build, seconds, gap in (
        ("gpt2", "GPT-2, 12 layers of 768, 8×1024 tokens, bf16, dropout", lambda: _gpt2(12, 768, 12, 8), 2.0, 0.005),
        (
            "gpt2-xl",
            "GPT-2 XL, 48 layers of 1600, 4×1024 tokens, bf16, dropout",
            lambda: _gpt2(48, 1600, 25, 4),
            10.0,
            0.01,
        ),
        ("t5", "T5, 12+12 layers of 768, 8×512 tokens, bf16, dropout", _t5, 20.0, 0.02),
        (
            "unet",
            "U-Net, widths 64 to 1024, 16 images of 256×256",
            _zoo("unet", width=64, depth=4, batch=16, image=256),
            20.0,
            0.03,
        ),
        (
            "resnet101",
            "ResNet-101, 64 images of 224×224",
            lambda: (resnet((3, 4, 23, 3)), (torch.randn(64, 3, 224, 224),), {}),
            20.0,
            0.03,
        ),
        ("regnet", "RegNetY-4GF-like, 64 images of 224×224", _regnet, 20.0, 0.03),
        (
            "mixer",
            "MLP-Mixer, 12 layers of 768, 128 images of 224×224",
            _zoo("mlp_mixer", layers=12, width=768, batch=128, image=224, patch=16),
            20.0,
            0.03,
        ),
        (
            "fourier",
            "Fourier operator, 16 layers of 64, 64 functions at 16384 points",
            _zoo("fourier", layers=16, width=64, modes=256, batch=64, length=16384),
            20.0,
            0.03,
        ),
        ("irregular", f"{IRREGULAR_UNITS} residual units, no two alike, 16384×1024", _irregular, 180.0, 1.0),
    )
}
