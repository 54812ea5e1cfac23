"""Models that mix positions by other means than attention: MLP-Mixer and Fourier layers (complex arithmetic)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .case import Built


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm_2(x))


class MlpMixer(nn.Module):
    """Returns `(scores, features)`: two differentiable outputs."""

    def __init__(self, layers: int, width: int, image: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.Sequential(*(MixerLayer((image // patch) ** 2, width) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1)
        return self.head(features), features


def mlp_mixer(layers: int = 4, width: int = 64, batch: int = 16, image: int = 32, patch: int = 4) -> Built:
    """MLP-Mixer with two differentiable outputs."""
    return MlpMixer(layers, width, image, patch), (torch.randn(batch, 3, image, image),), {}


class FourierLayer(nn.Module):
    """Multiplies the lowest `modes` frequencies by complex weights, beside a pointwise linear map."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.complex64) / width)
        self.pointwise = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        padded = F.pad(low, (0, spectrum.shape[-1] - self.modes))
        return F.gelu(torch.fft.irfft(padded, n=x.shape[-1]) + self.pointwise(x))


class FourierOperator(nn.Module):
    """Returns the loss against `target`."""

    def __init__(self, layers: int, width: int, modes: int) -> None:
        super().__init__()
        self.lift, self.lower = nn.Conv1d(2, width, 1), nn.Conv1d(width, 1, 1)
        self.layers = nn.Sequential(*(FourierLayer(width, modes) for _ in range(layers)))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.lower(self.layers(self.lift(x))), target)


def fourier(layers: int = 4, width: int = 24, modes: int = 12, batch: int = 16, length: int = 256) -> Built:
    """One-dimensional Fourier neural operator: complex parameters, real FFT and its inverse."""
    inputs, target = torch.randn(batch, 2, length), torch.randn(batch, 1, length)
    return FourierOperator(layers, width, modes), (inputs, target), {}
