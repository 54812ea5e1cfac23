"""The models: of the size that people train on one GPU, and small ones to try the command itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from tests.models import ZOO
from tests.models.case import Built
from tests.models.convolutional import ConvNet, DoubleConv, conv_bn

from ..models import Bottleneck


class Subject(msgspec.Struct, frozen=True):
    """describe: size in words. build(device): the model and its inputs. blocks: the modules to checkpoint, one by
    one."""

    describe: str
    build: Callable[[str], Built]
    blocks: Callable[[nn.Module], list[nn.Module]]


def _resnet50(device: str, batch: int, image: int, counts: tuple[int, ...], width: int) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem = nn.Sequential(conv_bn(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(counts):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not index else 1))
                inputs = 4 * width << stage
        model = ConvNet(stem, blocks, inputs, 1000).train()
        x = torch.randn(batch, 3, image, image)
    return model.to(device), (x.to(device),), {}


def _half(built: Built) -> Built:
    model, args, kwargs = built
    return model.bfloat16(), args, kwargs


def _listed(path: str) -> Callable[[nn.Module], list[nn.Module]]:
    def blocks(model: nn.Module) -> list[nn.Module]:
        container: Any = model.get_submodule(path)
        return list(container)

    return blocks


def _of_type(kind: type[nn.Module]) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda model: [module for module in model.modules() if isinstance(module, kind)]


def _zoo(name: str, **size: int) -> Callable[[str], Built]:
    return lambda device: ZOO[name].build(device, **size)


_LAYERS = {"gpt2": _listed("transformer.h"), "llama": _listed("model.layers")}

FULL: dict[str, Subject] = {
    "gpt2": Subject(
        "GPT-2, 12 layers of 768, 8×1024 tokens, bf16, dropout",
        lambda d: _half(_zoo("gpt2", layers=12, width=768, heads=12, batch=8, length=1024, vocab=50257)(d)),
        _LAYERS["gpt2"],
    ),
    "resnet50": Subject(
        "ResNet-50, 64 images of 224×224, f32",
        lambda d: _resnet50(d, 64, 224, (3, 4, 6, 3), 64),
        _of_type(Bottleneck),
    ),
    "unet": Subject(
        "U-Net, widths 64 to 1024, 16 images of 256×256, f32",
        _zoo("unet", width=64, depth=4, batch=16, image=256),
        _of_type(DoubleConv),
    ),
    "llama": Subject(
        "Llama-style, 8 layers of 2048, 4×2048 tokens, bf16",
        lambda d: _half(_zoo("llama", layers=8, width=2048, heads=16, batch=4, length=2048, vocab=32000)(d)),
        _LAYERS["llama"],
    ),
}
QUICK: dict[str, Subject] = {
    "gpt2": Subject("GPT-2, 2 layers of 32", _zoo("gpt2", layers=2, width=32, batch=4, length=32), _LAYERS["gpt2"]),
    "resnet50": Subject(
        "ResNet, 4 blocks, 16 images of 64×64", lambda d: _resnet50(d, 16, 64, (1, 1, 1, 1), 8), _of_type(Bottleneck)
    ),
    "unet": Subject(
        "U-Net, widths 8 to 32, 2 images of 32×32", _zoo("unet", depth=2, batch=2, image=32), _of_type(DoubleConv)
    ),
    "llama": Subject(
        "Llama-style, 2 layers of 32, in bf16",
        lambda d: _half(_zoo("llama", layers=2, width=32, batch=4, length=32)(d)),
        _LAYERS["llama"],
    ),
}
