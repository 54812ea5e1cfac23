"""A part of a step: instructions in a loop, below autograd and without autocast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...flat_step.graph import Graph
from ...torch_private.execution import ABOVE_KERNELS, DisableAutocast, ExcludeKeys
from .instructions import Instruction, Slots


class InstructionPart:
    """Instructions that run one after the other.

    Args:
        graph: The step. Results are checked against it until a run has completed; overlapping calls check as well.
            None: they are not checked.
    """

    def __init__(self, instructions: Sequence[Instruction], graph: Graph | None) -> None:
        self._instructions = instructions
        self._graph = graph

    def run(self, slots: Slots) -> None:
        graph = self._graph
        if graph is None:
            _loop(self._instructions, slots)
        else:
            _loop([_checked(instruction, graph) for instruction in self._instructions], slots)
            self._graph = None


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


def bordered(
    instructions: Sequence[Instruction], graph: Graph, calls: Mapping[int, Sequence[Callable[[], None]]]
) -> InstructionPart | Bordered:
    """Return a part with calls.

    Args:
        instructions: The instructions.
        graph: The step.
        calls: By the number of the following instruction; after the last one by the count.
    """
    if not calls:
        return InstructionPart(instructions, graph)
    cuts = sorted({0, *calls, len(instructions)})
    pieces = [
        (calls.get(cut, ()), InstructionPart(instructions[cut:end], graph))
        for cut, end in zip(cuts, [*cuts[1:], cuts[-1]], strict=True)
    ]
    return Bordered(pieces)


def _checked(instruction: Instruction, graph: Graph) -> Instruction:
    first = instruction.first
    if first is None:
        return instruction

    def run(slots: Slots) -> None:
        first(slots, graph)

    return instruction._replace(run=run)


def _loop(instructions: Sequence[Instruction], slots: Slots) -> None:
    """Run instructions. Autocast stays off, because its casts are operations of the schedule."""
    at = ""
    try:
        with DisableAutocast(), ExcludeKeys(ABOVE_KERNELS):
            for run, free, at, _ in instructions:  # noqa: B007 (the error's note reads `at`)
                run(slots)
                for slot in free:
                    slots[slot] = None
    except Exception as error:
        slots.clear()
        error.add_note(f"in operation {at!r} of the schedule")
        raise
