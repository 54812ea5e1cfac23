"""Random edits of the code of models: of those that can change what a step computes, and of those that cannot."""

from __future__ import annotations

import random
import re

from .sources import TRAIN

CONVOLUTIONS = '''
import torch
from torch import nn

GAIN = 1.25


def squeeze(x, rate=0.5):
    """Mean of the places."""
    y = x.mean((2, 3))
    return y * rate


class Stage(nn.Module):
    slope = 0.1

    def __init__(self, width, p=0.2):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, momentum=0.1)
        self.act, self.drop = nn.GELU(), nn.Dropout(p)
        self.shortcut = True

    def forward(self, x):
        # one stage
        y = self.drop(self.act(self.norm(self.conv(x))))
        y = torch.nn.functional.leaky_relu(y, self.slope) * GAIN
        return y + x if self.shortcut else y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 3 * 16)
        self.stages = nn.Sequential(*[Stage(3) for _ in range(2)])
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        image = self.stem(x).view(-1, 3, 4, 4)
        image = self.stages(image)
        return self.head(squeeze(image)).pow(2).sum()


def build():
    torch.manual_seed(0)
    return Net()
'''

SHARED = '''
import math

import torch
from torch import nn
from torch.nn import functional as F


class Mixer:
    """Holds settings, and is no module."""

    def __init__(self, tau):
        self.tau = tau

    def soften(self, scores):
        sharp = scores / self.tau
        return torch.softmax(sharp, dim=-1)


class Attention(nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.heads, self.dropout, self.mixer = heads, 0.1, Mixer(1.5)

    def split(self, x):
        parts = x.view(1, -1, self.heads, 8 // self.heads)
        return parts.transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = F.dropout(self.mixer.soften(scores), self.dropout, self.training)
        mixed = (weights @ v).transpose(1, 2).reshape(x.shape)
        return x + self.out(mixed)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.repeat = Attention(), nn.LayerNorm(8, eps=1e-5), 3
        self.scale = {"out": 0.7}

    def forward(self, x):
        for _ in range(self.repeat):
            x = F.silu(self.norm(self.layer(x)))
        return (x * self.scale["out"]).pow(2).mean()


def build():
    torch.manual_seed(0)
    return Net()
'''

MODELS = {"blocks": TRAIN, "convolutions": CONVOLUTIONS, "shared": SHARED}
_ACTIVATIONS = ("gelu", "silu", "tanh", "relu")
_NUMBER = re.compile(r"(?<=[= (*,{:] )(\d+\.\d+)\b|(?<=[=(])(\d+\.\d+)\b")


def harmful(text: str, dice: random.Random) -> str:
    """One place changed that may change the step: a number, an activation, a residual, an operator, a flag."""
    changes = [_number, _activation, _residual, _operator, _flag]
    dice.shuffle(changes)
    return next(result for result in (change(text, dice) for change in changes) if result != text)


def _number(text: str, dice: random.Random) -> str:
    matches = list(_NUMBER.finditer(text))
    if not matches:
        return text
    chosen = dice.choice(matches)
    return text[: chosen.start()] + str(round(dice.uniform(0.05, 0.95), 3)) + text[chosen.end() :]


def _activation(text: str, dice: random.Random) -> str:
    matches = list(re.finditer(r"F\.(gelu|silu|relu|tanh)\b|nn\.(GELU|SiLU|Tanh|ReLU)\(\)|import (gelu|silu)\b", text))
    if not matches:
        return text
    chosen = dice.choice(matches)
    old = next(group for group in chosen.groups() if group)
    new = dice.choice(("GELU", "SiLU", "Tanh", "ReLU") if old in ("GELU", "SiLU", "Tanh", "ReLU") else _ACTIVATIONS)
    return text[: chosen.start()] + chosen[0].replace(old, new) + text[chosen.end() :]


def _residual(text: str, dice: random.Random) -> str:
    return dice.choice(
        [
            text.replace("y = y + x", "y = y"),
            text.replace("return y + x if", "return y if"),
            text.replace("x + self.out", "self.out"),
        ]
    )


def _operator(text: str, dice: random.Random) -> str:
    return dice.choice(
        [
            text.replace(".pow(2)", ".pow(4)"),
            text.replace("self.alpha * x", "self.alpha + x"),
            text.replace("y * rate", "y - rate"),
        ]
    )


def _flag(text: str, dice: random.Random) -> str:
    return dice.choice(
        [
            text.replace("self.shortcut = True", "self.shortcut = False"),
            text.replace("0.5, True", "0.5, False"),
            text.replace("LayerNorm(8, eps=1e-5), 3", "LayerNorm(8, eps=1e-5), 2"),
        ]
    )


def harmless(text: str, dice: random.Random) -> str:
    """One place changed that cannot change the step: comment, blank line, docstring, local name, annotation, new
    code."""
    lines = text.split("\n")
    bodies = [at for at, line in enumerate(lines) if line.startswith("        ") and line.strip()[:1].isalpha()]
    at, kind = dice.choice(bodies), dice.randrange(6)
    if kind == 0:
        lines.insert(at, f"        # {dice.random()}")
    elif kind == 1:
        lines.insert(at, "")
    elif kind == 2:
        lines[at] += f"  # {dice.random()}"
    elif kind == 3:
        result = re.sub(r"\b(y|image|weights|mixed|sharp|parts)\b(?!=)", lambda m: f"{m[1]}_{len(text) % 7}", text)
        return result
    elif kind == 4:
        return re.sub(r'""".*?"""', f'"""{dice.random()}"""', text)
    else:
        return text.replace(
            "def build():", f"def unused_{len(text)}():\n    return {dice.random()}\n\n\ndef build():", 1
        )
    return "\n".join(lines)
