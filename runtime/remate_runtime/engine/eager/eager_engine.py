"""The engine "eager": a plain loop over operators.

Forward and backward run below autograd's dispatch keys. Autograd records no graph and counts no versions, so a value is
freed with its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from ...flat_step.graph import Graph
from ...link.borders import Border, backward_borders, forward_borders
from ...link.contract import StepContract
from ...link.events import BackwardStart, Event
from ...link.inference import forward_alone
from ...operator_calls.overloads import check_kernels
from ...support.once import once
from ..compiled_step import Compile, CompiledStep, Engine, Forwarded, LinkedStep
from .host_pages import LanesOf, NoCopies
from .instructions import InstructionCompiler, Slots
from .page_instructions import check_pages, pager_of
from .part import Bordered, InstructionPart, bordered
from .placed import Room
from .programs import Programs, StepProgram, program_of
from .random_runs import generator_restored

Calls = Mapping[int, Sequence[Callable[[], None]]]  # by the number of the following instruction


class _Calls:
    """The calls that gather and free the parameters of a sharded model in each part of a step; none for a whole
    model."""

    def __init__(self, step: LinkedStep) -> None:
        self._linked, self._sharded = step.linked, step.sharded
        self._groups = {} if step.sharded is None else step.sharded.groups(step.linked.graph)

    def forward(self, events: Sequence[Event]) -> Calls:
        return self._of(forward_borders(self._linked.graph, events, self._groups))

    def backward(self, segments: int) -> list[Calls]:
        if not self._groups:
            return [{}] * segments
        return [self._of(borders) for borders in backward_borders(self._linked, self._groups)]

    def _of(self, borders: Sequence[Border]) -> Calls:
        calls: dict[int, list[Callable[[], None]]] = {}
        for border in borders:
            assert self._sharded is not None
            calls.setdefault(border.at, []).append(partial(self._sharded.act, border.does, border.group))
        return calls


def compile_step(
    step: LinkedStep,
    device: torch.device,
    programs: Programs,
    room: Room | None = None,
    lanes: LanesOf | None = None,
) -> CompiledStep:
    """Prepare a step for a device.

    Args:
        step: The step.
        device: The device.
        programs: The programs of all steps of a model.
        room: The memory for results of calls that backward follows. None: each operator allocates its results.
        lanes: Returns the lanes that page values to the host. None: those of the device.

    Raises:
        BindError: The file was planned for a different class of device and uses operators without a kernel here.
    """
    linked, contract, operators = step.linked, step.contract, step.operators
    graph = linked.graph
    check_pages(step, device)
    if device.type != graph.device:
        check_kernels(tuple(operators.items()), device, graph.device)
    program = programs.of(step, device) if room is None else program_of(step, device, programs.constants, room.placed)
    compiler, empty = program.compiler, program.empty
    calls = _Calls(step)
    ahead = bordered(program.forward, graph, calls.forward(linked.forward))
    back = _segments(program, graph, contract, calls.backward(len(program.backward)))
    opened = empty.copy if room is None else room.opened(empty, compiler.views, program.spare)
    pager = None if compiler.pages is None else pager_of(linked, compiler.pages, device, lanes, programs.pinned)
    fill = compiler.filler()
    backward_start = linked.events[linked.backward_start]
    assert isinstance(backward_start, BackwardStart)

    def run(
        part: InstructionPart | Bordered, fill: Callable[[Slots], None], slots: Slots, sources: Sequence[object]
    ) -> Forwarded:
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
            forwarded = run(ahead, fill, begun(sources), sources)
        for buffer in contract.preserved:
            forwarded.residue[buffer] = forwarded.residue[buffer].clone()
        for slot in backward_start.frees:
            forwarded.residue[slot] = None
        return forwarded

    @once
    def without_backward() -> tuple[InstructionPart | Bordered, Callable[[Slots], None], Slots]:
        events = forward_alone(linked)
        own = InstructionCompiler(graph, operators, device, programs.constants, step.ranges)
        part = bordered(own.instructions(events), graph, calls.forward(events))
        return part, own.filler(), own.slots()

    def inference(sources: Sequence[object]) -> Forwarded:
        alone, fill, slots = without_backward()  # most calls are of training, so this is prepared at the first use
        return run(alone, fill, slots.copy(), sources)._replace(residue=None)

    def begin(slots: Slots, tangents: list[torch.Tensor]) -> None:
        for at, tangent in enumerate(contract.tangents):
            slots[tangent.value] = tangents[at]
        tangents.clear()

    paged = None if pager is None else pager.paged
    return CompiledStep(forward, inference, begin, back, room and room.peak, paged=paged)


def _segments(
    program: StepProgram, graph: Graph, contract: StepContract, calls: Sequence[Calls]
) -> tuple[Callable[[Slots], list[torch.Tensor]], ...]:
    """Return the functions of backward, one for each delivery."""
    values = [[contract.gradients[number].value for number in numbers] for numbers in contract.deliveries]

    def segment(at: int) -> Callable[[Slots], list[torch.Tensor]]:
        part, given, is_last = bordered(program.backward[at], graph, calls[at]), values[at], at == len(values) - 1
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

    return tuple(segment(at) for at in range(len(values)))


def _start() -> Compile:
    return partial(compile_step, programs=Programs())


def without_copies() -> Engine:
    """Return the engine for dry runs: on tensors without memory, no page is copied."""
    return EAGER._replace(start=lambda: partial(compile_step, programs=Programs(), lanes=NoCopies))


EAGER = Engine("eager", "calls one operator after the other", _start, shared=True)
