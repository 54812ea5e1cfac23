"""Instructions of steps, which sizes with the same events share: only literals differ, and these have slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...link.events import Deliver, Event, Linked, PageGone
from ...operator_calls.bindings import kind
from ...operator_calls.constants import Constants
from ...operator_calls.overloads import literal
from ...support.gc_pause import gc_paused
from ..compiled_step import LinkedStep
from .host_pages import PinnedMemory
from .instructions import NOWHERE, Instruction, InstructionCompiler
from .placed import Placed, Slots

_KEPT = 20  # most programs to keep for other sizes; beyond them, the least recently used one is dropped


class StepProgram(NamedTuple):
    """The instructions of a step.

    Attributes:
        linked: The step.
        operators: The live operator of every name.
        compiler: It has built the instructions.
        forward: The instructions of forward.
        backward: Those before each delivery.
        spare: An unused slot.
        empty: Is copied for every forward: the slots, with constants and literals.
        distinct: Operations, one for each line: those of a line have equal literals at every size.
    """

    linked: Linked
    operators: Mapping[str, Any]
    compiler: InstructionCompiler
    forward: tuple[Instruction, ...]
    backward: tuple[tuple[Instruction, ...], ...]
    spare: int
    empty: Slots
    distinct: Sequence[int]


class Programs:
    """The programs of a model's steps.

    Attributes:
        constants: The constants of all steps.
        pinned: Memory for their paged values.
    """

    def __init__(self) -> None:
        self.constants = Constants()
        self.pinned = PinnedMemory()
        self._kept: OrderedDict[Any, StepProgram] = OrderedDict()

    def of(self, step: LinkedStep, device: torch.device) -> StepProgram:
        """Return the program of a step whose operators allocate their results."""
        # The events of a step are one object at all sizes at which it was linked once (`link.sizes`).
        key = id(step.linked.events), device, step.ranges
        kept = self._kept.get(key)
        program = None if kept is None else _at(kept, step)
        if program is None:
            with gc_paused():
                program = program_of(step, device, self.constants)
            if program.compiler.pages is not None:
                return program
            self._kept[key] = program
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return program


def program_of(
    step: LinkedStep, device: torch.device, constants: Constants, placed: Mapping[int, Placed] = NOWHERE
) -> StepProgram:
    """Return the program of a step. The arguments are as in `InstructionCompiler`."""
    linked = step.linked
    compiler = InstructionCompiler(linked.graph, step.operators, device, constants, step.ranges, placed)
    forward = compiler.instructions(linked.forward, 0)
    backward = tuple(compiler.instructions(events, start) for start, events in _segments(linked))
    spare = compiler.spare()
    lines = step.lines or range(len(linked.graph.operations))
    distinct = tuple({lines[index]: index for index in compiler.literals}.values())
    return StepProgram(linked, step.operators, compiler, forward, backward, spare, compiler.slots(), distinct)


def _segments(linked: Linked) -> list[tuple[int, Sequence[Event]]]:
    """Return the events before each delivery, with the position of the first. Events after the last delivery only free
    memory; dropping the slots does the same."""
    events, start, segments = linked.events, linked.backward_start + 1, list[tuple[int, Sequence[Event]]]()
    for at, event in enumerate(events):
        if isinstance(event, Deliver):
            segments.append((start, events[start:at]))
            start = at + 1
    if segments:  # parameters that are paged out after the last delivery leave before it
        first, own = segments[-1]
        segments[-1] = first, (*own, *(event for event in events[start:] if isinstance(event, PageGone)))
    return segments


def _at(program: StepProgram, step: LinkedStep) -> StepProgram | None:
    """Return the program for a step with the same events at a different size; None if it has other instructions.

    Literals with a slot of their own may differ. A slot of several literals needs the same value from all.
    """
    if step.operators != program.operators:
        return None
    before, after = program.linked.graph.operations, step.linked.graph.operations
    literals, device = program.compiler.literals, program.compiler.device
    values: dict[int, object] = {}
    empty = program.empty.copy()
    for index in program.distinct:
        old, new, slots = before[index], after[index], literals[index] or {}
        if old.kwargs != new.kwargs or len(old.args) != len(new.args):
            return None
        for position, (was, given) in enumerate(zip(old.args, new.args, strict=True)):
            slot = slots.get(position)
            if slot is None:
                if was != given:
                    return None
            elif values.setdefault(slot, given) != given:
                return None
            elif was != given:
                if kind(was) != kind(given):
                    return None
                empty[slot] = literal(given, device)
    return program._replace(empty=empty)
