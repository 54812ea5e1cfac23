"""The random number generators of the process: torch's on every device in use, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


class Generators(NamedTuple):
    """The states of all generators at a moment."""

    torch: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> Generators:
        """Return the current states."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = sys.modules.get("numpy")
        state = numpy.random.get_state(legacy=False) if numpy is not None else None
        return cls((torch.get_rng_state(), *cuda), random.getstate(), state)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.torch[0])
        if self.torch[1:]:
            torch.cuda.set_rng_state_all(list(self.torch[1:]))
        random.setstate(self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpy is not None:
            numpy.random.set_state(self.numpy)

    def differences(self, other: Generators) -> Iterator[str]:
        """Yield the names of generators whose states differ from those of `other`."""
        both = zip(self.torch, other.torch, strict=False)
        if not all(torch.equal(own, theirs) for own, theirs in both):
            yield "torch"
        if self.python != other.python:
            yield "random (Python's)"
        if _words(self.numpy) != _words(other.numpy):
            yield "numpy.random"


def _words(state: Any) -> Any:
    """Return NumPy's state as comparable values."""
    if state is None:
        return None
    key = state["state"]["key"]
    return key.tobytes(), state["state"]["pos"], state.get("has_gauss"), state.get("gauss")
