"""Recomputed random operations: they draw the numbers of the first run, and restore the generator afterwards.

While a step is recorded there are no numbers, and the generator's state cannot be read. The tape of the recording
receives these operations instead, and does the same at each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from .placed import Slots

Call = Callable[[Slots], None]


class RandomTape(Protocol):
    def first(self, run: Callable[[], None], generator: torch.Generator) -> Any:
        """Record a run that will be repeated. Return a representation of its initial state."""
        ...

    def again(self, run: Callable[[], None], generator: torch.Generator, state: object) -> None:
        """Record a run that starts from that state."""
        ...


_TAPE: ContextVar[RandomTape | None] = ContextVar("tape", default=None)


@contextmanager
def recorded_by(tape: RandomTape) -> Generator[None]:
    """In this context and thread, let the tape record repeated random operations."""
    token = _TAPE.set(tape)
    try:
        yield
    finally:
        _TAPE.reset(token)


def saving(run: Call, generator: torch.Generator, state: int) -> Call:
    """Return the first run, which saves its initial state in a slot."""

    def first(slots: Slots) -> None:
        tape = _TAPE.get()
        if tape is not None:
            slots[state] = tape.first(lambda: run(slots), generator)
            return
        slots[state] = generator.get_state()
        run(slots)

    return first


def replaying(run: Call, generator: torch.Generator, state: int, last: bool) -> Call:
    """Return a recomputation. last: the state is not needed afterwards."""

    def again(slots: Slots) -> None:
        tape = _TAPE.get()
        if tape is not None:
            tape.again(lambda: run(slots), generator, slots[state])
        else:
            from_state(lambda: run(slots), generator, slots[state])
        if last:
            slots[state] = None

    return again


@contextmanager
def generator_restored() -> Generator[None]:
    """Restore the CPU generator's state if the body fails, so that the call can be repeated."""
    before = torch.default_generator.clone_state()  # not a tensor, because the predicted peak does not include one
    try:
        yield
    except BaseException:
        torch.default_generator.set_state(before.get_state())
        raise


def from_state(run: Callable[[], None], generator: torch.Generator, state: torch.Tensor) -> None:
    """Run with this state of the generator, then restore its own."""
    current = generator.get_state()
    generator.set_state(state)
    try:
        run()
    finally:
        generator.set_state(current)
