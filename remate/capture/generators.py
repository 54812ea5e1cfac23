"""Random numbers that a model draws outside its operations: a trace would hold one draw for ever."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def undisturbed(model: torch.nn.Module, drawn: list[str]) -> Iterator[None]:
    """Adds to `drawn` the generators that were drawn from, or seeded, while this lasts: Python's, NumPy's, torch's and those
    in attributes of the modules. All are put back to where they were."""
    watched = [(name, get, put, get()) for name, get, put in _generators(model)]
    try:
        yield
    finally:
        for name, get, put, state in watched:
            if not _equal(get(), state):
                put(state)
                if name not in drawn:
                    drawn.append(name)


def _generators(model: torch.nn.Module) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """(name, how to read the state, how to set it)."""
    yield "Python's random", random.getstate, random.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield "numpy.random", numpy.random.get_state, numpy.random.set_state
    yield "torch's generator outside the operations", torch.get_rng_state, torch.set_rng_state
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            what = f"{path}.{name}" if path else name
            if isinstance(value, random.Random):
                yield f"{what!r}", value.getstate, value.setstate
            elif isinstance(value, torch.Generator):
                yield f"{what!r}", value.get_state, value.set_state
            elif numpy is not None and isinstance(value, numpy.random.Generator):
                bits = value.bit_generator
                yield f"{what!r}", lambda b=bits: b.state, lambda state, b=bits: setattr(b, "state", state)
            elif numpy is not None and isinstance(value, numpy.random.RandomState):
                yield f"{what!r}", value.get_state, value.set_state


def _equal(one: Any, other: Any) -> bool:
    return _plain(one) == _plain(other)


def _plain(state: Any) -> Any:
    """A state in lists and numbers."""
    if isinstance(state, tuple):
        return [_plain(part) for part in state]
    if isinstance(state, dict):
        return {key: _plain(part) for key, part in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
