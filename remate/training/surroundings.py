"""Runs planning within a training step without side effects on the step."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Generator
from typing import Any

import torch

_random: Any = torch.random  # torch declares its functions without types


@contextlib.contextmanager
def undisturbed() -> Generator[None]:
    """Disable the loop's autocast and grad mode, and restore the states of random generators afterwards."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_random.fork_rng(devices=devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
