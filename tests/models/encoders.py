"""Encoders and encoder-decoders: BERT and T5 from `transformers`, a vision Transformer, two towers that share
weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .case import Built


def bert(layers: int = 4, width: int = 64, heads: int = 4, batch: int = 8, length: int = 64, vocab: int = 256) -> Built:
    """BERT with the masked-language head, a padding mask and dropout 0.1; returns loss and logits."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=length,
    )
    ids = torch.randint(0, vocab, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[:, length - length // 8 :] = 0
    return BertForMaskedLM(config), (), {"input_ids": ids, "attention_mask": mask, "labels": ids}


def t5(layers: int = 2, width: int = 64, heads: int = 4, batch: int = 8, length: int = 48, vocab: int = 256) -> Built:
    """T5: relative position bias shared by the layers of a stack, cross attention, tied embedding, dropout 0.1."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=vocab,
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        use_cache=False,
        pad_token_id=0,
        decoder_start_token_id=0,  # pyright: ignore[reportCallIssue]
    )
    ids = torch.randint(0, vocab, (batch, length))
    labels = torch.randint(0, vocab, (batch, length))
    return T5ForConditionalGeneration(config), (), {"input_ids": ids, "labels": labels}


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class VisionTransformer(nn.Module):
    """Returns class scores; the loss is outside."""

    def __init__(self, layers: int, width: int, heads: int, image: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 1 + (image // patch) ** 2, width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def vit(layers: int = 4, width: int = 64, heads: int = 4, batch: int = 16, image: int = 32, patch: int = 4) -> Built:
    """Vision Transformer with fused attention and a class token."""
    return VisionTransformer(layers, width, heads, image, patch, 10), (torch.randn(batch, 3, image, image),), {}


class TwoTower(nn.Module):
    """Two inputs through one tower: every parameter is used twice. Returns a dict with the loss and both embeddings."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.tower = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.project = nn.Linear(width, width // 2, bias=False)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.tower:
            x = layer(x)
        return F.normalize(self.project(x.mean(1)), dim=-1)

    def forward(self, query: torch.Tensor, document: torch.Tensor) -> dict[str, torch.Tensor]:
        left, right = self.encode(query), self.encode(document)
        scores = left @ right.t() * self.temperature.exp()
        target = torch.arange(scores.shape[0], device=scores.device)
        return {"loss": F.cross_entropy(scores, target), "left": left.detach(), "right": right.detach()}


def two_tower(layers: int = 2, width: int = 64, heads: int = 4, batch: int = 8, length: int = 48) -> Built:
    """A contrastive pair of towers that share all weights."""
    query, document = torch.randn(batch, length, 16), torch.randn(batch, length, 16)
    return TwoTower(layers, width, heads), (query,), {"document": document}
