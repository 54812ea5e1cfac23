"""Sequence models that step or convolve over time: LSTM, GRU, gated convolution, a diagonal state-space model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .case import Built


class Recurrent(nn.Module):
    """Embedding, a recurrent stack, a linear head. Returns the loss."""

    def __init__(self, cell: nn.Module, vocab: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cell = cell
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(self.embed(ids))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def _tokens(batch: int, length: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, vocab, (batch, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def lstm(layers: int = 2, width: int = 32, batch: int = 32, length: int = 16, vocab: int = 64) -> Built:
    """Two-layer LSTM, each layer one kernel on the CPU."""
    cell = nn.LSTM(width, width, layers, batch_first=True)
    return Recurrent(cell, vocab, width), _tokens(batch, length, vocab), {}


def gru(layers: int = 2, width: int = 32, batch: int = 32, length: int = 16, vocab: int = 64) -> Built:
    """Two-layer GRU."""
    return Recurrent(nn.GRU(width, width, layers, batch_first=True), vocab, width), _tokens(batch, length, vocab), {}


class GatedConvolution(nn.Module):
    """Causal depthwise convolution, gated by a second branch."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.norm = nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.filter = nn.Conv1d(width, width, kernel, groups=width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.inputs(self.norm(x)).chunk(2, -1)
        mixed = self.filter(F.pad(value.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2)
        return x + self.output(mixed * torch.sigmoid(gate))


class StateSpace(nn.Module):
    """Diagonal linear recurrence, run as a loop over time: `h = a·h + b·x`, `y = (c·h).sum + d·x`."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.log_a = nn.Parameter(torch.rand(width, state))
        self.b, self.c = nn.Parameter(torch.randn(width, state)), nn.Parameter(torch.randn(width, state) / state)
        self.d = nn.Parameter(torch.ones(width))
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = self.norm(x)
        decay = torch.exp(-torch.exp(self.log_a))
        hidden = inputs.new_zeros(x.shape[0], *decay.shape)
        outputs = []
        for step in inputs.unbind(1):
            hidden = decay * hidden + self.b * step.unsqueeze(-1)
            outputs.append((hidden * self.c).sum(-1) + self.d * step)
        return x + self.output(F.silu(torch.stack(outputs, 1)))


class SequenceRegressor(nn.Module):
    """Returns a prediction per position; the loss is outside."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x))).tanh()


def gated_convolution(layers: int = 5, width: int = 48, kernel: int = 7, batch: int = 8, length: int = 128) -> Built:
    """Stack of gated causal convolutions."""
    stack: list[nn.Module] = [GatedConvolution(width, kernel) for _ in range(layers)]
    return SequenceRegressor(stack, width), (torch.randn(batch, length, 4),), {}


def state_space(layers: int = 2, width: int = 32, state: int = 8, batch: int = 16, length: int = 16) -> Built:
    """Stack of diagonal state-space layers, unrolled over time."""
    stack: list[nn.Module] = [StateSpace(width, state) for _ in range(layers)]
    return SequenceRegressor(stack, width), (torch.randn(batch, length, 4),), {}
