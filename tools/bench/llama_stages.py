"""A Llama as torchtitan defines and divides it: in stages, each tensor parallel by sequences, heads and features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 128256


class Size(msgspec.Struct, frozen=True):
    """Sizes of a Llama. heads: of queries; there are 8 of keys and values."""

    layers: int
    width: int
    inner: int
    heads: int


LLAMA = {
    "8b": Size(32, 4096, 14336, 32),
    "70b": Size(80, 8192, 28672, 64),
    "405b": Size(126, 16384, 53248, 128),
}


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.wq, self.wo = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(size.width, 8 * self.head, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, self.head) for w in (self.wq, self.wk, self.wv))
        q, k, v = (t.transpose(1, 2) for t in (_rotated(q, table), _rotated(k, table), v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).contiguous().view(batch, length, -1))


def _rotated(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = table[None, : x.shape[1], None, :].chunk(2, -1)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.attention, self.feed_forward = Attention(size), FeedForward(size)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Stage(nn.Module):
    """Some layers. The first stage has the embedding, the last one the head and the loss."""

    def __init__(self, size: Size, layers: int, first: bool, last: bool) -> None:
        super().__init__()
        self.first, self.last = first, last
        half = size.width // size.heads // 2
        self.register_buffer("table", torch.zeros(8192, 2 * half), persistent=False)
        if self.first:
            self.tok_embeddings = nn.Embedding(VOCABULARY, size.width)
        self.layers = nn.ModuleDict({str(at): Block(size) for at in range(layers)})
        if self.last:
            self.norm, self.output = nn.RMSNorm(size.width), nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.tok_embeddings(x) if self.first else x
        for layer in self.layers.values():
            x = layer(x, self.table)
        if not self.last:
            return x
        assert labels is not None
        loss: Any = F.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), labels.flatten())
        return loss.to_local() if hasattr(loss, "to_local") else loss


def parallelized(stage: Stage, mesh: Any) -> Stage:
    """torchtitan's plan: sequences cut between the blocks, heads and features within, classes at the head."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {}
    if stage.first:
        plan["tok_embeddings"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if stage.last:
        plan["norm"] = SequenceParallel()
        plan["output"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(stage, mesh, plan)
    inputs: Callable[..., Any] = PrepareModuleInput
    for layer in stage.layers.values():
        of_block = {
            "attention_norm": SequenceParallel(),
            "attention": inputs(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
            **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": inputs(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, of_block)
    return stage
