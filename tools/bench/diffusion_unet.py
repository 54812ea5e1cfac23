"""A U-Net with the shape of Stable Diffusion 1: residual blocks with a time, self- and cross-attention at three levels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTHS = (320, 640, 1280, 1280)
_HEADS, _GROUPS, _WORDS = 8, 32, 768


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(_GROUPS, inputs), nn.GroupNorm(_GROUPS, outputs)
        self.conv_1, self.conv_2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv_2(F.silu(self.norm_2(y)))


class Attention(nn.Module):
    def __init__(self, width: int, keys: int) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.key, self.value = nn.Linear(keys, width, bias=False), nn.Linear(keys, width, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        split = [
            y.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for y in (self.query(x), self.key(keys), self.value(keys))
        ]
        return self.out(F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Self-attention, attention to the words, and a gated MLP, between projections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.words = Attention(width, width), Attention(width, _WORDS)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](y)
        y = y + self.own(normed, normed)
        y = y + self.words(self.norms[1](y), words)
        left, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(left * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class Level(nn.Module):
    """A residual block, and a transformer where the level has one."""

    def __init__(self, inputs: int, outputs: int, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(inputs, outputs, 4 * WIDTHS[0])
        self.transformer = Transformer(outputs) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, words)


class DiffusionUnet(nn.Module):
    """Returns the loss of the predicted noise."""

    def __init__(self) -> None:
        super().__init__()
        first, times = WIDTHS[0], 4 * WIDTHS[0]
        self.time = nn.Sequential(nn.Linear(first, times), nn.SiLU(), nn.Linear(times, times))
        self.enter, self.leave = nn.Conv2d(4, first, 3, padding=1), nn.Conv2d(first, 4, 3, padding=1)
        self.norm = nn.GroupNorm(_GROUPS, first)
        self.down, self.halves = nn.ModuleList(), nn.ModuleList()
        self.up, self.doubles = nn.ModuleList(), nn.ModuleList()
        widths, width = [first], first
        for at, wide in enumerate(WIDTHS):
            for _ in range(2):
                self.down.append(Level(width, wide, at < 3))
                widths.append(width := wide)
            if at < 3:
                self.halves.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                widths.append(width)
        self.middle = nn.ModuleList([Level(width, width, True), Level(width, width, False)])
        for at, wide in reversed(list(enumerate(WIDTHS))):
            for _ in range(3):
                self.up.append(Level(width + widths.pop(), wide, at < 3))
                width = wide
            if at:
                self.doubles.append(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: torch.Tensor, at: torch.Tensor, words: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(WIDTHS[0] // 2, device=x.device) * (9.2 / (WIDTHS[0] // 2)))
        angles = at[:, None] * rates
        time = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype))
        x = self.enter(x)
        kept = [x]
        for index, level in enumerate(self.down):
            x = level(x, time, words)
            kept.append(x)
            if index % 2 and index // 2 < 3:
                x = self.halves[index // 2](x)
                kept.append(x)
        for level in self.middle:
            x = level(x, time, words)
        for index, level in enumerate(self.up):
            x = level(torch.cat([x, kept.pop()], 1), time, words)
            if index % 3 == 2 and index // 3 < 3:
                x = self.doubles[index // 3](F.interpolate(x, scale_factor=2.0))
        return F.mse_loss(self.leave(F.silu(self.norm(x))).float(), noise.float())
