"""A part of a step: instructions in a loop, below autograd and without autocast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...link.events import Event
from ...torch_private.execution import ABOVE_KERNELS, DisableAutocast, ExcludeKeys
from .instructions import Instruction, InstructionCompiler, Slots


class InstructionPart:
    """Instructions that run one after the other.

    Attributes:
        first: The same instructions with checks against the file. They run until a run has completed; overlapping calls
            check as well.
    """

    def __init__(self, instructions: Sequence[Instruction], first: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self._first: Sequence[Instruction] | None = first

    def run(self, slots: Slots) -> None:
        if self._first is None:
            _loop(self._instructions, slots)
        else:
            _loop(self._first, slots)
            self._first = None


class Bordered:
    """Parts with calls before each, which run with the autocast and autograd state around the step."""

    def __init__(self, pieces: Sequence[tuple[Sequence[Callable[[], None]], InstructionPart]]) -> None:
        self._pieces = pieces

    def run(self, slots: Slots) -> None:
        try:
            for calls, part in self._pieces:
                for call in calls:
                    call()
                part.run(slots)
        except Exception:
            slots.clear()
            raise


def part_of(compiler: InstructionCompiler, events: Sequence[Event], first: int | None = None) -> InstructionPart:
    """Return an instruction for every event that computes. first: as in `InstructionCompiler.instructions`."""
    return InstructionPart(
        compiler.instructions(events, first=first), compiler.instructions(events, judge=True, first=first)
    )


def bordered(
    compiler: InstructionCompiler,
    events: Sequence[Event],
    calls: Mapping[int, Sequence[Callable[[], None]]],
    at: int | None = None,
) -> InstructionPart | Bordered:
    """Return a part with calls.

    Args:
        compiler: Builds the instructions.
        events: The events.
        calls: By the number of the following instruction; after the last one by the count.
        at: Position of the first event in the step, if the events are of the step.
    """
    if not calls:
        return part_of(compiler, events, at)
    instructions, first = compiler.instructions(events, first=at), compiler.instructions(events, judge=True, first=at)
    cuts = sorted({0, *calls, len(instructions)})
    pieces = [
        (calls.get(cut, ()), InstructionPart(instructions[cut:end], first[cut:end]))
        for cut, end in zip(cuts, [*cuts[1:], cuts[-1]], strict=True)
    ]
    return Bordered(pieces)


def _loop(instructions: Sequence[Instruction], slots: Slots) -> None:
    """Run instructions. Autocast stays off, because its casts are operations of the schedule."""
    at = ""
    try:
        with DisableAutocast(), ExcludeKeys(ABOVE_KERNELS):
            for run, free, at in instructions:  # noqa: B007 (the error's note reads `at`)
                run(slots)
                for slot in free:
                    slots[slot] = None
    except Exception as error:
        slots.clear()
        error.add_note(f"in operation {at!r} of the schedule")
        raise
