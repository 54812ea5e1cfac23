"""The computations between two borders of a step that the caller sees (the turn, the deliveries) -> one section."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..compiled_step import LinkedStep
from ..eager.instructions import Instruction, InstructionCompiler, Slots
from ..eager.part import Part
from .artefacts import Artefacts
from .calls import CompiledCall, Reader, interpreted
from .graphs import segment_graph
from .lives import Piece
from .segments import Segment, cut

_log = logging.getLogger(__name__)


class Section(NamedTuple):
    """Segments that run one after the other, and what is read from the slots when they have."""

    part: Part
    readers: tuple[Reader, ...]

    def run(self, slots: Slots) -> list[list[torch.Tensor]]:
        """What each of the readers reads."""
        self.part.run(slots)
        return [reader.read(slots) for reader in self.readers]


class SectionCompiler:
    """Makes the sections of a step in one of its forms."""

    def __init__(self, step: LinkedStep, artefacts: Artefacts) -> None:
        self.step, self.graph, self._artefacts = step, step.linked.graph, artefacts
        self.compiler = InstructionCompiler(self.graph, step.operators, torch.device("cpu"))
        self._compiled = self._interpreted = 0

    def section(self, row: Sequence[Piece], *reads: Sequence[int]) -> Section:
        """reads: values, in lists, that are read behind the computations."""
        plain: list[Instruction] = []
        first: list[Instruction] = []
        for segment in cut(self.graph, row, self.step.leaves):
            call = self._call(segment) if segment.compiled else None
            if call is not None:
                plain.append(call.instruction)
                first.append(call.first)
                self._compiled += 1
            else:
                events = interpreted(self.graph, segment)
                plain += self.compiler.instructions(events)
                first += self.compiler.instructions(events, judge=True)
                self._interpreted += len(segment.pieces)
        readers = tuple(Reader(self.compiler, values) for values in reads)
        views = [one for reader in readers for one in reader.instructions]
        return Section(Part([*plain, *views], [*first, *views]), readers)

    def slots(self) -> Slots:
        """To be copied for every forward; call it when all sections are made."""
        _log.info(
            "%d segments compiled as %d functions, %d operations interpreted",
            self._compiled,
            len(self._artefacts),
            self._interpreted,
        )
        return self.compiler.slots()

    def _call(self, segment: Segment) -> CompiledCall | None:
        ids = [self.graph.operations[piece.event.op].id for piece in segment.pieces]
        name = ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"
        about = segment_graph(self.graph, segment, self.step.operators)
        function = self._artefacts.get(about, name)
        return None if function is None else CompiledCall(segment, about, function, name)
