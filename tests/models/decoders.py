"""Decoder-only Transformers: two from `transformers`, one written out, and one with a mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .case import Built


def gpt2(layers: int = 4, width: int = 64, heads: int = 4, batch: int = 8, length: int = 64, vocab: int = 256) -> Built:
    """GPT-2 of `transformers`: dropout 0.1, tied embedding, returns loss and logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(0, vocab, (batch, length))
    return GPT2LMHeadModel(config), (), {"input_ids": ids, "labels": ids}


def llama(
    layers: int = 3, width: int = 64, heads: int = 4, batch: int = 8, length: int = 64, vocab: int = 256
) -> Built:
    """Llama of `transformers`: rotary embedding, RMS norm, SwiGLU, grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=length,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(0, vocab, (batch, length))
    return LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(~self.mask, float("-inf"))  # type: ignore[operator]
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, length: int, dropout: float, mlp: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, length, dropout)
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """Returns the loss alone."""

    def __init__(self, blocks: list[DecoderBlock], width: int, length: int, vocab: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def tiny_gpt(
    layers: int = 4,
    width: int = 64,
    heads: int = 4,
    batch: int = 8,
    length: int = 64,
    vocab: int = 128,
    dropout: float = 0.1,
) -> Built:
    """A decoder written out: masked softmax attention (-inf), dropout on attention and branches."""

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    blocks = [DecoderBlock(width, heads, length, dropout, mlp()) for _ in range(layers)]
    ids = torch.randint(0, vocab, (batch, length + 1))
    return Decoder(blocks, width, length, vocab), (ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), {}


class MixtureOfExperts(nn.Module):
    """Every token is weighted over its two best experts; experts run as batched products (static shapes)."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        best, chosen = self.router(tokens).softmax(-1).topk(2, dim=-1)
        weights = torch.zeros(tokens.shape[0], self.up.shape[0], dtype=x.dtype, device=x.device)
        weights = weights.scatter(1, chosen, best / best.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("td,edh->eth", tokens, self.up))
        mixed = torch.einsum("eth,ehd->etd", hidden, self.down)
        return torch.einsum("etd,te->td", mixed, weights).view_as(x)


def mixture_of_experts(
    layers: int = 3, width: int = 48, experts: int = 4, batch: int = 4, length: int = 64, vocab: int = 128
) -> Built:
    """A decoder whose feed-forward layers are routed: topk, scatter, batched products."""
    blocks = [DecoderBlock(width, 4, length, 0.1, MixtureOfExperts(width, 2 * width, experts)) for _ in range(layers)]
    ids = torch.randint(0, vocab, (batch, length + 1))
    return Decoder(blocks, width, length, vocab), (ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), {}
