"""Detects random numbers that a model draws outside of operations, and generators that it seeds or restores. A trace
would repeat one draw, and the operations of a schedule draw from torch's own generator."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from remate_runtime.bind import modules_by_path
from remate_runtime.format import is_object, is_tuple


class Seeds(TorchFunctionMode):
    """Detects that forward seeds or restores torch's generators (`fork_rng`, a replayed dropout). Nothing is drawn
    during a trace, so each call of a function of tensors sets a new seed, and the next call compares it. `refuse()`
    raises if it differs. States are restored at the end."""

    def __init__(self, refuse: Callable[[], None]) -> None:
        super().__init__()
        self._refuse = refuse
        self._seed = 0x5EED << 16  # differs between two runs of forward, so that reads of it are detected

    @contextmanager
    def watching(self) -> Generator[None]:
        kept = [(generator, generator.get_state()) for generator in self._generators()]
        self._mark()
        try:
            with self:
                yield
            self._look()
            if self._drawn():
                self._refuse()
        finally:
            for generator, state in kept:
                generator.set_state(state)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look()
        self._mark()
        return func(*args, **(kwargs or {}))

    def _look(self) -> None:
        if any(generator.initial_seed() != self._seed for generator in self._generators()):
            self._refuse()

    def _drawn(self) -> bool:
        """Whether numbers were drawn since the last mark."""
        states = [(generator, generator.get_state()) for generator in self._generators()]
        return any(not _equal(generator.manual_seed(self._seed).get_state(), state) for generator, state in states)

    def _mark(self) -> None:
        self._seed += 1
        for generator in self._generators():
            generator.manual_seed(self._seed)

    def _generators(self) -> list[torch.Generator]:
        generators = [torch.default_generator]
        return [*generators, *torch.cuda.default_generators] if torch.cuda.is_initialized() else generators


class FirstDraw:
    """Finds the module in which forward first draws from the generators of Python and NumPy.

    Attributes:
        module: Its path, or "" if nothing was drawn.
    """

    def __init__(self) -> None:
        self.module = ""
        self._running = ""
        self._states = b""
        self._found = False

    def entered(self, module: str) -> None:
        """Note that the module at this path runs from now on. What was drawn since the last call is of that one."""
        if self._found:
            return
        states = pickle.dumps([get() for _, get, _ in _of_libraries()])
        if self._states not in (b"", states):
            self.module, self._found = self._running, True
        self._states, self._running = states, module


@contextmanager
def undisturbed(model: torch.nn.Module, drawn: list[str]) -> Generator[None]:
    """Add to `drawn` the generators that were used or seeded in the `with` block: those of Python and NumPy, and those
    in attributes of modules. Restores all of them."""
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
    """Yield (name, function that reads the state, function that sets it)."""
    yield from _of_libraries()
    numpy = sys.modules.get("numpy")
    for path, module in modules_by_path(model, each_once=True).items():
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


def _of_libraries() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    yield "Python's random", random.getstate, random.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield "numpy.random", numpy.random.get_state, numpy.random.set_state


def _equal(left: object, right: object) -> bool:
    return _plain(left) == _plain(right)


def _plain(state: Any) -> Any:
    """Convert a state to lists and numbers."""
    if is_tuple(state):
        return [_plain(part) for part in state]
    if is_object(state):
        return {key: _plain(part) for key, part in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
