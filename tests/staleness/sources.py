"""Models written to files, edited and imported again, as a person edits train.py between planning and training."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_numbers = itertools.count()

TRAIN = '''
import dataclasses
import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import gelu as activation

SLOPE = 0.25


@dataclasses.dataclass
class Config:
    gain: float = 1.5
    name: str = "a"


CONFIG = Config()


def leaky(x):
    """A function of the user's."""
    return torch.where(x > 0, x, SLOPE * x)


class Block(nn.Module):
    depth = 2

    def __init__(self, width=8, p=0.1):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(p)
        self.alpha, self.residual, self.act = 0.5, True, F.silu
        self.soft = functools.partial(F.softplus, beta=2.0)
        self.config, self.scaling = Config(), {"default": 2.0}

    def mix(self, x):
        # halves
        y = self.alpha * x
        return y * self.depth

    def forward(self, x):
        y = self.b(self.drop(activation(self.a(self.norm(x)))))
        y = self.act(y) * self.config.gain + self.soft(y) * self.scaling["default"]
        y = leaky(self.mix(y)) * CONFIG.gain
        if self.residual:
            y = y + x
        return y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Sequential(nn.Linear(8, 4), nn.GELU())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).pow(2).mean()


def build():
    torch.manual_seed(0)
    return Net()
'''


class Sources:
    """`sources.load(text)` imports `text` as a file called train.py, each time from a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, text: str, name: str = "train") -> ModuleType:
        number = next(_numbers)
        path = self._folder / str(number) / f"{name}.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"remate_test_{number}.{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"remate_test_{number}"] = ModuleType(f"remate_test_{number}")  # pickle imports it first
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    def build(self, old: str = "", new: str = "", text: str = TRAIN) -> Any:
        """The model of `text` with one place edited."""
        assert text.count(old) >= 1
        return self.load(text.replace(old, new, 1) if old else text).build()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    before = set(sys.modules)
    yield Sources(tmp_path_factory.mktemp("sources"))
    for name in set(sys.modules) - before:
        if name.startswith("remate_test_"):
            del sys.modules[name]
