"""One model of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Case(msgspec.Struct, frozen=True):
    """name; make(**size) builds it from the ambient generator.

    random: a training step draws random numbers. tolerance: what a gradient may differ from eager's, relative to the
    largest element of that gradient; 0.0 means bitwise equal (one thread, CPU).
    """

    name: str
    make: Callable[..., Built]
    random: bool = False
    tolerance: float = 0.0

    @property
    def deterministic(self) -> bool:
        return self.tolerance == 0.0

    def build(self, device: str = "cpu", **size: Any) -> Built:
        """`(model, args, kwargs)` in training mode on `device`; the ambient generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, args, kwargs = self.make(**size)
        to = torch.device(device)
        return model.train().to(to), tuple(a.to(to) for a in args), {k: v.to(to) for k, v in kwargs.items()}

    def __call__(self, **size: Any) -> Built:
        return self.build(**size)
