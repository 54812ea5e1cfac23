"""The one simulator: what a linked schedule costs. Every strategy is judged by it, never by its own model.

Peak: bytes that the step (forward and backward) holds at its worst moment beyond parameters, buffers, inputs and
optimizer state; outputs, gradients and workspace count.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from .linker import Execution, Linked


class Timeline(msgspec.Struct, frozen=True):
    """Memory over the step. Positions count through forward, the turn, and backward.

    peak, during, after: bytes. time: ns of all executions. during[i]: held while step i runs, workspace included;
    after[i]: held when its dead values are gone. peak_at: the first position where the peak is reached.
    """

    peak: int
    time: int
    peak_at: int
    turn: int
    during: tuple[int, ...]
    after: tuple[int, ...]


def steps_with_turn(linked: Linked) -> tuple[Execution | None, ...]:
    """All steps by position; None stands for the turn."""
    return (*linked.forward, None, *linked.backward)


def simulate(linked: Linked) -> Timeline:
    """Cost a linked schedule: peak in bytes, time in ns."""
    steps = steps_with_turn(linked)
    born = [0] * len(steps)
    died = [0] * (len(steps) + 1)
    for allocation in linked.allocations:
        born[allocation.birth] += allocation.nbytes
        died[allocation.death + 1] += allocation.nbytes
    held = list(accumulate(b - d for b, d in zip(born, died, strict=False)))
    operations = linked.graph.operations
    during = [h + (operations[s.op].workspace if s else 0) for h, s in zip(held, steps, strict=True)]
    after = [h - d for h, d in zip(held, died[1:], strict=True)]
    peak = max(during, default=0)
    time = sum(operations[s.op].ns for s in steps if s and not operations[s.op].view)
    at = during.index(peak) if during else 0
    return Timeline(peak, time, at, len(linked.forward), tuple(during), tuple(after))
