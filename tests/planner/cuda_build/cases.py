"""Attention calls and small models whose operators on CUDA are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class AttentionCase(NamedTuple):
    """A call of scaled_dot_product_attention. mask: "", "mask", "broadcast", "trained"."""

    dtype: torch.dtype
    head: int
    value_head: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    mask: str
    causal: bool
    dropout: float
    trains: bool

    def tensors(self) -> dict[str, torch.Tensor | None]:
        """Return the arguments, on the present default device."""
        batch = 2

        def tensor(heads: int, rows: int, size: int) -> torch.Tensor:
            made = torch.empty(batch, rows, heads, size, dtype=self.dtype).transpose(1, 2)
            return made.detach().requires_grad_(self.trains)

        shape = (1, 1, self.queries, self.keys) if self.mask == "broadcast" else (batch, 1, self.queries, self.keys)
        mask = torch.empty(shape, dtype=self.dtype).requires_grad_(self.mask == "trained") if self.mask else None
        return {
            "query": tensor(self.heads, self.queries, self.head),
            "key": tensor(self.key_heads, self.keys, self.head),
            "value": tensor(self.key_heads, self.keys, self.value_head),
            "attn_mask": mask,
        }


def attention_cases() -> Iterator[AttentionCase]:
    """Yield the combinations of the axes that select a kernel, without those that torch refuses, and special ones."""
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    heads = ((64, 64), (40, 40), (128, 128), (192, 128), (256, 256), (320, 320), (30, 30))
    masks = (("", False), ("", True), ("mask", False), ("broadcast", False), ("trained", False))
    lengths, groups = ((128, 128), (1, 128), (100, 72)), ((4, 4), (8, 2))
    for dtype, (head, value), (mask, causal), (rows, columns), (
        query_heads,
        key_heads,
    ), dropout, trains in itertools.product(dtypes, heads, masks, lengths, groups, (0.0, 0.1), (True, False)):
        if mask == "trained" and not trains:
            continue
        yield AttentionCase(dtype, head, value, query_heads, key_heads, rows, columns, mask, causal, dropout, trains)
    yield from _limits_of_cudnn()


def _limits_of_cudnn() -> Iterator[AttentionCase]:
    """Yield probabilities of dropout that cuDNN can and cannot draw, and numbers of heads up to its limit and above."""
    for dtype, trains in itertools.product((torch.float16, torch.bfloat16), (True, False)):
        for dropout, rows in itertools.product((0.03125, 0.0625, 0.2, 0.5), (128, 1)):
            yield AttentionCase(dtype, 64, 64, 4, 4, rows, 128, "", False, dropout, trains)
        for heads in (65535, 65536):
            yield AttentionCase(dtype, 8, 8, heads, heads, 4, 4, "", False, 0.0, trains)


class Loss(nn.Module):
    """Sums what a model returns, in float32. cast: autocast to this dtype."""

    def __init__(self, *layers: nn.Module, cast: torch.dtype | None = None) -> None:
        super().__init__()
        self.layers, self.cast = nn.Sequential(*layers), cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cast is None:
            return self.layers(x).float().sum()
        with torch.autocast(x.device.type, self.cast):
            return self.layers(x).float().sum()


class Classified(Loss):
    """Cross entropy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        if self.cast is None:
            return F.cross_entropy(self.layers(x), target)
        with torch.autocast(x.device.type, self.cast):
            return F.cross_entropy(self.layers(x), target)


HALF = torch.bfloat16
Build = Callable[[], tuple[nn.Module, torch.Tensor]]


def _encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, **options)


def _convolutions(**options: Any) -> list[nn.Module]:
    return [nn.Conv2d(3, 16, 3, **options), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, **options)]


def _images(layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return torch.randn(4, 3, 16, 16).to(memory_format=layout)


def _rows() -> torch.Tensor:
    return torch.randn(4, 16, 64)


def _words() -> torch.Tensor:
    return torch.zeros(4, 16, dtype=torch.long)


MODELS: dict[str, Build] = {
    "encoder, dropout": lambda: (Loss(_encoder()), _rows()),
    "encoder bf16, dropout": lambda: (Loss(_encoder(dtype=HALF)), _rows().to(HALF)),
    "encoder autocast": lambda: (Loss(_encoder(dropout=0.0), cast=HALF), _rows()),
    "encoder f16 autocast": lambda: (Loss(_encoder(), cast=torch.float16), _rows()),
    "pre-norm encoder": lambda: (Loss(_encoder(norm_first=True, activation="gelu")), _rows()),
    "batch norm": lambda: (Loss(*_convolutions(), nn.BatchNorm2d(32)), _images()),
    "batch norm channels last": lambda: (Loss(*_convolutions(), nn.BatchNorm2d(32)), _images(torch.channels_last)),
    "batch norm autocast": lambda: (Loss(*_convolutions(), nn.BatchNorm2d(32), cast=HALF), _images()),
    "batch norm 1d": lambda: (Loss(nn.Flatten(), nn.Linear(1024, 32), nn.BatchNorm1d(32)), _rows()),
    "convolution bias": lambda: (Loss(*_convolutions(bias=False), nn.Conv2d(32, 8, 1, groups=8)), _images()),
    "transposed convolution": lambda: (Loss(nn.ConvTranspose2d(3, 8, 4, 2), nn.LeakyReLU()), _images()),
    "pooling": lambda: (Loss(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)), _images()),
    "upsampling": lambda: (Loss(nn.Conv2d(3, 8, 3), nn.Upsample(scale_factor=2, mode="bilinear")), _images()),
    "group norm": lambda: (Loss(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()), _images()),
    "group norm bf16": lambda: (Loss(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)).to(HALF), _images().to(HALF)),
    "instance norm": lambda: (Loss(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8)), _images()),
    "layer norm": lambda: (Loss(nn.Linear(64, 64), nn.LayerNorm(64)), _rows()),
    "layer norm bf16": lambda: (Loss(nn.Linear(64, 64), nn.LayerNorm(64)).to(HALF), _rows().to(HALF)),
    "layer norm autocast": lambda: (Loss(nn.Linear(64, 64), nn.LayerNorm(64), cast=HALF), _rows()),
    "RMS norm": lambda: (Loss(nn.Linear(64, 64), nn.RMSNorm(64)), _rows()),
    "RMS norm bf16": lambda: (Loss(nn.Linear(64, 64), nn.RMSNorm(64)).to(HALF), _rows().to(HALF)),
    "activations": lambda: (Loss(nn.Linear(64, 64), nn.SiLU(), nn.Mish(), nn.GELU(), nn.GLU(), nn.ELU()), _rows()),
    "dropouts": lambda: (Loss(nn.Linear(64, 64), nn.Dropout(0.2), nn.AlphaDropout(0.1)), _rows()),
    "dropout of channels": lambda: (Loss(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.2)), _images()),
    "embedding": lambda: (Loss(nn.Embedding(32, 64), nn.Linear(64, 8)), _words()),
    "embedding bag": lambda: (Loss(nn.EmbeddingBag(32, 64, mode="mean"), nn.Linear(64, 8)), _words()),
    "cross entropy": lambda: (Classified(nn.Flatten(), nn.Linear(1024, 10)), _rows()),
    "cross entropy autocast": lambda: (Classified(nn.Flatten(), nn.Linear(1024, 10), cast=HALF), _rows()),
    "softmax autocast": lambda: (Loss(nn.Linear(64, 64), nn.Softmax(-1), cast=HALF), _rows()),
    "softplus autocast": lambda: (Loss(nn.Linear(64, 64), nn.Softplus(), nn.LogSoftmax(-1), cast=HALF), _rows()),
}
