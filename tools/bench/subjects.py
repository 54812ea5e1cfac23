"""Models for comparisons with PyTorch's own means, and the blocks to checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from tests.models import ZOO
from tests.models.case import Built
from tests.models.convolutional import BasicBlock, ConvNet, DoubleConv, conv_bn


class Subject(msgspec.Struct, frozen=True):
    """describe: size in words. build: returns the model and its inputs. blocks: the modules to checkpoint individually."""

    name: str
    describe: str
    build: Callable[[], Built]
    blocks: Callable[[nn.Module], list[nn.Module]]


def _gpt2() -> Built:
    return ZOO["gpt2"].build(layers=6, width=256, heads=4, batch=4, length=256, vocab=2048)


def _gpt2_without_dropout() -> Built:
    model, args, kwargs = _gpt2()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    config: Any = model.config
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.0
    return model, args, kwargs


def _llama() -> Built:
    return ZOO["llama"].build(layers=6, width=256, heads=4, batch=4, length=256, vocab=2048)


def _encoder_decoder() -> Built:
    return ZOO["t5"].build(layers=4, width=256, heads=4, batch=4, length=192, vocab=2048)


def _unet() -> Built:
    return ZOO["unet"].build(width=24, depth=3, batch=4, image=128)


def _vit() -> Built:
    return ZOO["vit"].build(layers=6, width=256, heads=4, batch=16, image=64, patch=8)


def _bert() -> Built:
    return ZOO["bert"].build(layers=6, width=256, heads=4, batch=4, length=256, vocab=2048)


def _convnext() -> Built:
    """ConvNeXt with two of its four stages: depthwise convolutions of 7×7, norms over channels."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config: Any = ConvNextConfig(num_stages=2, hidden_sizes=[48, 96], depths=[3, 3], drop_path_rate=0.0)
        config.num_labels = 100
        inputs = {"pixel_values": torch.randn(8, 3, 128, 128), "labels": torch.randint(0, 100, (8,))}
        return ConvNextForImageClassification(config).train(), (), inputs


def _mamba() -> Built:
    """Mamba with the recurrence that transformers runs on the CPU."""
    from transformers import MambaConfig, MambaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = MambaConfig(num_hidden_layers=2, hidden_size=192, state_size=8, use_cache=False, vocab_size=1024)
        ids = torch.randint(0, 1024, (8, 64))
        return MambaForCausalLM(config).train(), (), {"input_ids": ids, "labels": ids}


def _resnet18() -> Built:
    """ResNet-18 as for ImageNet: widths 64 to 512, two blocks each, batch norm, in-place ReLU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem = nn.Sequential(conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inputs = 64
        for stage in range(4):
            for index in range(2):
                outputs = 64 << stage
                blocks.append(BasicBlock(inputs, outputs, 2 if stage and not index else 1))
                inputs = outputs
        return ConvNet(stem, blocks, inputs).train(), (torch.randn(16, 3, 64, 64),), {}


def _of_type(kind: type[nn.Module]) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda model: [m for m in model.modules() if isinstance(m, kind)]


def _named(kind: str) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda model: [module for module in model.modules() if type(module).__name__ == kind]


def _lists(*paths: str) -> Callable[[nn.Module], list[nn.Module]]:
    def blocks(model: nn.Module) -> list[nn.Module]:
        modules: list[Any] = [model.get_submodule(path) for path in paths]
        return [block for listed in modules for block in listed]

    return blocks


SUBJECTS: dict[str, Subject] = {
    subject.name: subject
    for subject in (
        Subject("gpt2", "GPT-2, 6 layers of 256, 4×256 tokens, dropout", _gpt2, _lists("transformer.h")),
        Subject(
            "gpt2_without_dropout",
            "GPT-2, 6 layers of 256, 4×256 tokens, no dropout",
            _gpt2_without_dropout,
            _lists("transformer.h"),
        ),
        Subject("llama", "Llama, 6 layers of 256, 4×256 tokens", _llama, _lists("model.layers")),
        Subject("resnet18", "ResNet-18, 16 images of 64×64", _resnet18, _of_type(BasicBlock)),
        Subject("unet", "U-Net, 4 images of 128×128", _unet, _of_type(DoubleConv)),
        Subject("vit", "ViT, 6 layers of 256, 16 images of 64×64", _vit, _lists("layers")),
        Subject(
            "bert", "BERT, 6 layers of 256, 4×256 tokens, padding mask, dropout", _bert, _lists("bert.encoder.layer")
        ),
        Subject(
            "convnext", "ConvNeXt, 3+3 layers of 48 and 96, 8 images of 128×128", _convnext, _named("ConvNextLayer")
        ),
        Subject("mamba", "Mamba, 2 layers of 192, 8×64 tokens", _mamba, _named("MambaBlock")),
        Subject(
            "encoder_decoder",
            "T5, 4+4 layers of 256, 4×192 tokens, dropout",
            _encoder_decoder,
            _lists("encoder.block", "decoder.block"),
        ),
    )
}
