"""Compares CPU time of a step without recomputation with eager PyTorch, for models with many small operations.

    python -m tools.bench.overhead [NAME...] [--ms 1500]

Calls of eager and of the scheduled model alternate until eager has taken `--ms` milliseconds, at least nine times. They
run on one thread, in CPU time of the thread. Zeroing gradients counts on both sides.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import nn

from remate import plan
from remate_runtime import apply

from .text import table


class Sequence(nn.Module):
    """A recurrent layer, batch first, and the mean square of its output."""

    def __init__(self, kind: Callable[..., nn.Module], *sizes: int, **options: Any) -> None:
        super().__init__()
        self.layer = kind(*sizes, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0].square().mean()


class Scan(nn.Module):
    """A diagonal linear recurrence as a loop: h = a·h + b·x."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.decay, self.inward = nn.Parameter(torch.rand(width, states)), nn.Parameter(torch.rand(width, states))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decay = torch.exp(-torch.exp(self.decay))
        hidden, states = x.new_zeros(x.shape[0], *decay.shape), []
        for inputs in x.unbind(1):
            hidden = decay * hidden + self.inward * inputs.unsqueeze(-1)
            states.append(hidden.sum(-1))
        return torch.stack(states, 1).square().mean()


class Rwkv(nn.Module):
    """The recurrence of RWKV-4 as a loop, written into a tensor step by step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay, self.first = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.key, self.value, self.gate = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys, values, out = self.key(x), self.value(x), torch.zeros_like(x)
        above = below = torch.zeros_like(keys[:, 0])
        largest = torch.full_like(above, -1e38)
        for t in range(x.shape[1]):
            key, value = keys[:, t], values[:, t]
            top = torch.maximum(largest, key + self.first)
            old, new = torch.exp(largest - top), torch.exp(key + self.first - top)
            out[:, t] = (old * above + new * value) / (old * below + new)
            top = torch.maximum(largest + self.decay, key)
            old, new = torch.exp(largest + self.decay - top), torch.exp(key - top)
            above, below, largest = old * above + new * value, old * below + new, top
        return (torch.sigmoid(self.gate(x)) * out).square().mean()


class Slices(nn.Module):
    """Writes into slices of its features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.into(x).clone()
        y[:, ::2] *= 2
        y[:, 1:5] += x[:, 1:5]
        y[..., :8] = torch.tanh(y[..., :8])
        return self.out(y).square().mean()


class Fourier(nn.Module):
    """Three layers in the spectrum, as of Fourier neural operators."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes, self.weight = modes, nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) * 0.02)
        self.beside = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            spectrum = torch.fft.rfft(x)
            low = torch.zeros_like(spectrum)
            low[..., : self.modes] = torch.einsum("bix,iox->box", spectrum[..., : self.modes], self.weight)
            x = nn.functional.gelu(torch.fft.irfft(low, n=x.shape[-1]) + self.beside(x))
        return x.square().mean()


class One(nn.Module):
    """One layer, which shows the cost of a call beside its operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean()


class Subject(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


SUBJECTS = {
    "LSTM 64": Subject(lambda: Sequence(nn.LSTM, 64, 64), (8, 32, 64)),
    "LSTM 2 x 128, both ways, dropout": Subject(
        lambda: Sequence(nn.LSTM, 128, 128, num_layers=2, bidirectional=True, dropout=0.1), (16, 50, 128)
    ),
    "LSTM 64, projected": Subject(lambda: Sequence(nn.LSTM, 64, 64, proj_size=32), (8, 32, 64)),
    "GRU 64": Subject(lambda: Sequence(nn.GRU, 64, 64), (8, 32, 64)),
    "GRU 256": Subject(lambda: Sequence(nn.GRU, 256, 256), (32, 32, 256)),
    "RNN 64": Subject(lambda: Sequence(nn.RNN, 64, 64), (8, 32, 64)),
    "scan over 64 steps": Subject(lambda: Scan(32, 8), (4, 64, 32)),
    "RWKV over 32 steps": Subject(lambda: Rwkv(64), (4, 32, 64)),
    "slices written in place": Subject(lambda: Slices(64), (8, 32, 64)),
    "FFT": Subject(lambda: Fourier(32, 16), (8, 32, 128)),
    "one linear layer": Subject(lambda: One(16), (4, 16)),
}


def step(model: nn.Module, x: torch.Tensor) -> float:
    """Return CPU milliseconds of one step on this thread."""
    start = time.thread_time_ns()
    model.zero_grad()
    model(x).backward()
    return (time.thread_time_ns() - start) / 1e6


def same(left: nn.Module, right: nn.Module, x: torch.Tensor) -> bool:
    for model in (left, right):
        torch.manual_seed(0)
        step(model, x)
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs)


def row(name: str, ms: float) -> tuple[str, ...]:
    torch.manual_seed(0)
    eager, x = SUBJECTS[name].build(), torch.randn(SUBJECTS[name].shape)
    ours = copy.deepcopy(eager)
    planned = apply(ours, plan(ours, (x,), budget="100%", cost="cpu"))
    for _ in range(3):
        step(eager, x)
        step(planned, x)
    times: list[tuple[float, float]] = []
    while len(times) < 9 or sum(e for e, _ in times) < ms:
        times.append((step(eager, x), step(planned, x)))
    ratios = quantiles([p / e for e, p in times], n=10)
    base, median_of_ours = (median(column) for column in zip(*times, strict=True))
    equal = "yes" if same(eager, planned, x) else "no"
    return (
        name,
        f"{base:.3f}",
        f"{median_of_ours:.3f}",
        f"{median_of_ours / base:.2f}",
        f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
        equal,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SUBJECTS), metavar="NAME")
    parser.add_argument("--ms", type=float, default=1500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    heads = ("a step without recomputation", "eager, ms", "ours, ms", "ratio", "10-90 %", "bitwise")
    print(table([heads, *(row(name, args.ms) for name in args.names)]))


if __name__ == "__main__":
    main()
