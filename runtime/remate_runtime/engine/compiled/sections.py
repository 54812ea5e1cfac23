"""Sections: the computations between two points of a step at which the caller takes over (the forward/backward boundary
and the deliveries)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...link.events import RecomputeRun
from ..eager.instructions import Instruction, InstructionCompiler, Slots
from ..eager.part import InstructionPart
from .calls import Reader, SegmentCall, interpreted
from .memory import Planned


class Section(NamedTuple):
    """Segments that run in order, and readers of their results."""

    part: InstructionPart
    readers: tuple[Reader, ...]

    def run(self, slots: Slots) -> list[list[torch.Tensor]]:
        """Run the segments. Return the tensors of each reader."""
        self.part.run(slots)
        return [reader.read(slots) for reader in self.readers]


def section(compiler: InstructionCompiler, row: Sequence[Planned], *reads: Sequence[int]) -> Section:
    """Return a section.

    Args:
        compiler: Builds the instructions.
        row: The segments.
        reads: Lists of the values to read after the segments have run.
    """
    instructions: list[Instruction] = []
    for planned in row:
        if planned.function is not None:
            ids = [compiler.graph.operations[piece.event.op].id for piece in planned.segment.pieces]
            name = ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"
            recompute = all(isinstance(piece.event, RecomputeRun) for piece in planned.segment.pieces)
            call = SegmentCall(planned.segment, planned.function, name, compiler.device)
            instructions.append(compiler.ranged(call.instruction, recompute))
        else:
            instructions += compiler.instructions(interpreted(compiler.graph, planned.segment))
    readers = tuple(Reader(compiler, values) for values in reads)
    views = [instruction._replace(first=None) for reader in readers for instruction in reader.instructions]
    return Section(InstructionPart([*instructions, *views], compiler.graph), readers)
