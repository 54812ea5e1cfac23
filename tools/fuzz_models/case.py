"""A generated model with everything that one seed decides, and how it is planned and run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .comparison import TOLERANCES
from .programs import Program
from .trial import Trial

COMPILED = ("compiled", "auto")  # engines that round differently
WAYS = ("sizes", "checked", "edited", "threads", "engines")  # see README.md


@dataclass(frozen=True)
class Options:
    """How models are planned and run.

    Attributes:
        dtype: The type of parameters and inputs.
        autocast: Whether to plan and run within torch.autocast in bfloat16.
        engine: The engine of `apply`.
        ways: Names of `WAYS`, other ways to run the models of `operations`.
    """

    dtype: torch.dtype = torch.float32
    autocast: bool = False
    engine: str = "eager"
    ways: frozenset[str] = frozenset()

    def casting(self) -> AbstractContextManager[object]:
        """The context of planning and of each call of a model."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.autocast)

    def trial(self) -> Trial:
        """A trial that lets results differ as much as rounding may make them."""
        if self.engine in COMPILED or (self.dtype == torch.float64 and "engines" in self.ways):
            return Trial(TOLERANCES[torch.float32])  # some models compute in float32 for a while
        return Trial(TOLERANCES[torch.bfloat16 if self.autocast else self.dtype])


class Case(NamedTuple):
    """A generated program, and what tries it. The same source has the same result."""

    program: Program
    run: Callable[[str], Trial]


Generator = Callable[[int, Options], Case]
