"""Random operations that run again: a recomputation draws the numbers of the first run, and leaves the generator as if
nothing had happened.

While a step is recorded there are no numbers, and no state of the generator can be looked at: the tape of the recording
is reported these operations, and does what is done here whenever it is played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from .placed import Slots

Call = Callable[[Slots], None]


class RandomTape(Protocol):
    def first(self, run: Callable[[], None], generator: torch.Generator) -> Any:
        """Record a run that will be repeated. Returns what stands for the state that it starts from."""
        ...

    def again(self, run: Callable[[], None], generator: torch.Generator, state: Any) -> None:
        """Record a run that starts from that state."""
        ...


_TAPE: ContextVar[RandomTape | None] = ContextVar("tape", default=None)


@contextmanager
def told(tape: RandomTape) -> Iterator[None]:
    """In this context, and in this thread, random operations that run again are recorded by the tape."""
    token = _TAPE.set(tape)
    try:
        yield
    finally:
        _TAPE.reset(token)


def saving(run: Call, generator: torch.Generator, state: int) -> Call:
    """The first run, with the slot that keeps the state that it starts from."""

    def first(slots: Slots) -> None:
        tape = _TAPE.get()
        if tape is not None:
            slots[state] = tape.first(lambda: run(slots), generator)
            return
        slots[state] = generator.get_state()
        run(slots)

    return first


def replaying(run: Call, generator: torch.Generator, state: int, last: bool) -> Call:
    """A recomputation. last: nothing will need the state any more."""

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
def generator_restored() -> Iterator[None]:
    """If what is run fails, the CPU's generator has the state that it had before: the call can be made again."""
    before = torch.default_generator.clone_state()  # no tensor: the predicted peak has none for it
    try:
        yield
    except BaseException:
        torch.default_generator.set_state(before.get_state())
        raise


def from_state(run: Callable[[], None], generator: torch.Generator, state: torch.Tensor) -> None:
    """Run with this state of the generator, which gets its own back."""
    current = generator.get_state()
    generator.set_state(state)
    try:
        run()
    finally:
        generator.set_state(current)
