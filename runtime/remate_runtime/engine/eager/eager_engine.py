"""The engine "eager": a plain loop over operators.

Forward and backward run below autograd's dispatch keys. Autograd records no graph and counts no versions, so a value is
freed with its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from ...link.borders import Border, backward_borders, forward_borders
from ...link.contract import StepContract
from ...link.events import BackwardStart, Deliver, Event, Linked, PageGone
from ...link.inference import forward_alone
from ...operator_calls.constants import Constants
from ...operator_calls.overloads import check_kernels
from ..compiled_step import Compile, CompiledStep, Engine, Forwarded, LinkedStep
from .instructions import NOWHERE, InstructionCompiler, Slots
from .pages import check_pages, pager_of
from .part import Bordered, InstructionPart, bordered
from .placed import Room
from .random_runs import generator_restored

Calls = Mapping[int, Sequence[Callable[[], None]]]  # by the number of the following instruction


class _Calls:
    """The calls that gather and free the parameters of a sharded model in each part of a step; none for a whole
    model."""

    def __init__(self, step: LinkedStep) -> None:
        self._linked, self._sharded = step.linked, step.sharded
        self._groups: dict[int, int] = {}
        if step.sharded is not None:
            for number, value in enumerate(step.linked.graph.values):
                group = step.sharded.group_of(value.name) if value.kind == "parameter" else None
                if group is not None:
                    self._groups[number] = group

    def forward(self, events: Sequence[Event]) -> Calls:
        return self._of(forward_borders(self._linked.graph, events, self._groups))

    def backward(self) -> list[Calls]:
        return [self._of(borders) for borders in backward_borders(self._linked, self._groups)]

    def _of(self, borders: Sequence[Border]) -> Calls:
        calls: dict[int, list[Callable[[], None]]] = {}
        for border in borders:
            assert self._sharded is not None
            calls.setdefault(border.at, []).append(partial(self._sharded.act, border.does, border.group))
        return calls


def compile_step(
    step: LinkedStep, device: torch.device, constants: Constants, room: Room | None = None
) -> CompiledStep:
    """Prepare a step for a device.

    Args:
        step: The step.
        device: The device.
        constants: The constants of all steps of a model.
        room: The memory for results of calls that backward follows. None: each operator allocates its results.

    Raises:
        BindError: The file was planned for a different class of device and uses operators without a kernel here.
    """
    linked, contract, operators = step.linked, step.contract, step.operators
    graph = linked.graph
    check_pages(step, device)
    if device.type != graph.device:
        check_kernels(tuple(operators.items()), device, graph.device)
    compiler = InstructionCompiler(graph, operators, device, constants, step.ranges, room.placed if room else NOWHERE)
    calls = _Calls(step)
    ahead = bordered(compiler, linked.forward, calls.forward(linked.forward), 0)
    without = forward_alone(linked)
    alone = bordered(compiler, without, calls.forward(without))
    back = _segments(linked, contract, compiler, calls.backward())
    spare = compiler.spare()
    empty = compiler.slots()  # copied for every forward; holds constants and literals
    opened = empty.copy if room is None else room.opened(empty, compiler.views, spare)
    pager = None if compiler.pages is None else pager_of(linked, compiler.pages)
    fill = compiler.filler()
    backward_start = linked.events[linked.backward_start]
    assert isinstance(backward_start, BackwardStart)

    def run(part: InstructionPart | Bordered, slots: Slots, sources: Sequence[object]) -> Forwarded:
        for slot, tensor in zip(contract.sources, sources, strict=True):
            slots[slot] = tensor
        fill(slots)
        part.run(slots)
        outputs = [slots[output.value] for output in contract.outputs]
        return Forwarded(outputs, [slots[value] for _, value in contract.updates], slots)

    def begun(sources: Sequence[object]) -> Slots:
        slots = opened()
        if pager is not None:
            slots[pager.slot] = pager.open(dict(zip(contract.sources, sources, strict=True)))
        return slots

    def forward(sources: Sequence[object]) -> Forwarded:
        with nullcontext() if pager is None else generator_restored():
            forwarded = run(ahead, begun(sources), sources)
        for buffer in contract.preserved:
            forwarded.residue[buffer] = forwarded.residue[buffer].clone()
        for slot in backward_start.frees:
            forwarded.residue[slot] = None
        return forwarded

    def inference(sources: Sequence[object]) -> Forwarded:
        return run(alone, empty.copy(), sources)._replace(residue=None)

    def begin(slots: Slots, tangents: list[torch.Tensor]) -> None:
        for at, tangent in enumerate(contract.tangents):
            slots[tangent.value] = tangents[at]
        tangents.clear()

    paged = None if pager is None else pager.paged
    return CompiledStep(forward, inference, begin, back, room and room.peak, paged=paged)


def _segments(
    linked: Linked, contract: StepContract, compiler: InstructionCompiler, calls: Sequence[Calls]
) -> tuple[Callable[[Slots], list[torch.Tensor]], ...]:
    """Return the functions of backward, one for each delivery. Events after the last delivery only free memory;
    dropping the slots does the same."""
    events, start, cut = linked.events, linked.backward_start + 1, list[tuple[int, Sequence[Event]]]()
    for at, event in enumerate(events):
        if isinstance(event, Deliver):
            cut.append((start, events[start:at]))
            start = at + 1
    if cut:  # parameters that are paged out after the last delivery leave before it
        cut[-1] = cut[-1][0], (*cut[-1][1], *(event for event in events[start:] if isinstance(event, PageGone)))
    values = [[contract.gradients[number].value for number in numbers] for numbers in contract.deliveries]

    def segment(at: int) -> Callable[[Slots], list[torch.Tensor]]:
        first, own = cut[at]
        part, given, is_last = bordered(compiler, own, calls[at], first), values[at], at == len(cut) - 1
        later = {value for follow in values[at + 1 :] for value in follow}
        emptied = [value for value in given if value not in later]

        def run(slots: Slots) -> list[torch.Tensor]:
            part.run(slots)
            gradients = [slots[value] for value in given]
            for value in emptied:
                slots[value] = None
            if is_last:
                slots.clear()
            return gradients

        return run

    return tuple(segment(at) for at in range(len(cut)))


def _start() -> Compile:
    return partial(compile_step, constants=Constants())


EAGER = Engine("eager", "calls one operator after the other", _start, shared=True)
