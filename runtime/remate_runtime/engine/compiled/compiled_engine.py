"""The engine "compiled", and the engine "auto", which uses it where it works."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace

from ...errors import EngineError
from ...format.vocabulary import Gradients
from ...link.contract import StepContract
from ...link.events import BackwardStart, Deliver, Event, Linked
from ...link.inference import forward_alone
from ...link.simulator import Account
from ...operator_calls.overloads import check_kernels
from ..compiled_step import Compile, CompiledStep, Engine, Forwarded, LinkedStep
from ..eager.eager_engine import EAGER
from ..eager.instructions import InstructionCompiler, Slots
from .artefacts import Artefacts
from .fit import FittedSegments, fit
from .inductor import numbered, unavailable
from .joined import as_compiled
from .live_ranges import Piece, drop, pieces, sources
from .memory import Planned, predict
from .sections import Section, section

_log = logging.getLogger(__name__)


def _start() -> Compile:
    if reason := unavailable():
        raise EngineError(f"the engine 'compiled' does not work here: {reason}\n  engine='eager' needs no compiler")
    known: dict[torch.device, Artefacts] = {}

    def compile_(step: LinkedStep, device: torch.device) -> CompiledStep:
        device = _meant(step, device)
        if reason := unavailable(device.type):
            raise EngineError(
                f"the engine 'compiled' does not work for a model on {device.type} here: {reason}\n  use engine='eager'"
            )
        if step.linked.paged:
            raise EngineError("the engine 'compiled' does not page values, as the schedule asks\n  use engine='eager'")
        if step.sharded is not None:
            raise EngineError(
                "the engine 'compiled' gathers nothing, and fully_shard has sharded parts of the model\n"
                "  use engine='eager'"
            )
        return compile_step(step, device, _of(known, device))

    return compile_


def _start_auto() -> Compile:
    eager = EAGER.start()
    if reason := unavailable():
        _log.info("steps are interpreted: %s", reason)
        return eager
    known: dict[torch.device, Artefacts] = {}

    def compile_(step: LinkedStep, device: torch.device) -> CompiledStep:
        intended = _meant(step, device)
        reason = _reason_to_interpret(step, intended)
        if not reason:
            return compile_step(step, intended, _of(known, intended))
        _log.info("the step is interpreted: %s", reason)
        return eager(step, device)

    return compile_


def _reason_to_interpret(step: LinkedStep, device: torch.device) -> str:
    """Return why "auto" does not compile a step; "" if it does."""
    if device.type != "cpu":
        return f"it is on {device.type}, where compiled steps are new (engine='compiled' compiles it)"
    if step.linked.paged:
        return "values are paged"
    return "parts of the model are sharded" if step.sharded is not None else unavailable(device.type)


def _meant(step: LinkedStep, device: torch.device) -> torch.device:
    """Return the device that the step will run on: for a model on the meta device, the device of the plan."""
    return numbered(torch.device(step.linked.graph.device) if device.type == "meta" else device)


def _of(known: dict[torch.device, Artefacts], device: torch.device) -> Artefacts:
    """Return the compiled functions for this device."""
    if device not in known:
        known[device] = Artefacts(device)
    return known[device]


def compile_step(step: LinkedStep, device: torch.device, artefacts: Artefacts) -> CompiledStep:
    """Compile a step for a device.

    Args:
        step: The step.
        device: The device.
        artefacts: Functions compiled so far. This adds to them.

    Raises:
        BindError: The file was planned for a different class of device and uses operators without a kernel here.
    """
    if device.type != step.linked.graph.device:
        check_kernels(tuple(step.operators.items()), device, step.linked.graph.device)
    step = as_compiled(step)
    contract, linked, graph = step.contract, step.linked, step.linked.graph
    rows, left = computations(linked)
    fitted = fit(step, rows, left, artefacts)
    _log_segments(fitted, step.budget)
    shown = [output.value for output in contract.outputs], [value for _, value in contract.updates]
    compiler = InstructionCompiler(graph, step.operators, device, artefacts.constants, step.ranges)
    first = section(compiler, fitted.sections[0], *shown)
    segments = _backward(compiler, contract, fitted.sections[1:])
    empty = compiler.slots()
    fill = compiler.filler()
    alone: list[tuple[Section, Slots, Callable[[Slots], None]]] = []  # filled by the first inference

    def filled(slots: Slots, fill: Callable[[Slots], None], given: Sequence[object]) -> Slots:
        slots = slots.copy()
        for slot, tensor in zip(contract.sources, given, strict=True):
            slots[slot] = tensor
        fill(slots)
        return slots

    def forward(given: Sequence[object]) -> Forwarded:
        slots = filled(empty, fill, given)
        outputs, updates = first.run(slots)
        for buffer in contract.preserved:
            slots[buffer] = slots[buffer].clone()
        for slot in left:
            slots[slot] = None
        return Forwarded(outputs, updates, slots)

    def inference(given: Sequence[object]) -> Forwarded:
        if not alone:
            only = InstructionCompiler(graph, step.operators, device, artefacts.constants, step.ranges)
            row = pieces(graph, forward_alone(linked), sources(graph))
            forward = section(only, fit(step, [row], (), artefacts).sections[0], *shown)
            alone.append((forward, only.slots(), only.filler()))
        outputs, updates = alone[0][0].run(filled(*alone[0][1:], given))
        return Forwarded(outputs, updates, None)

    def begin(slots: Slots, tangents: list[torch.Tensor]) -> None:
        for at, tangent in enumerate(contract.tangents):
            slots[tangent.value] = tangents[at]
        tangents.clear()

    def account(gradients: Gradients) -> Account:
        other = replace(linked, graph=replace(graph, delivered=gradients))
        return predict(other, fitted.sections, left, artefacts).account

    return CompiledStep(forward, inference, begin, segments, fitted.account.peak, account)


def computations(linked: Linked) -> tuple[list[list[Piece]], tuple[int, ...]]:
    """Return the computations of forward and those before each delivery, and the values whose slots are empty when
    backward begins."""
    graph = linked.graph
    held = sources(graph)
    ahead = pieces(graph, linked.forward, held)
    backward_start = linked.events[linked.backward_start]
    assert isinstance(backward_start, BackwardStart)
    drop(graph, backward_start.frees, held)
    left = tuple(value for value in range(len(graph.values)) if value not in held)
    return [ahead, *(pieces(graph, row, held) for row in _rows(linked))], left


def _log_segments(fitted: FittedSegments, budget: int) -> None:
    planned = [planned_segment for row in fitted.sections for planned_segment in row]
    functions = [planned_segment.function.key for planned_segment in planned if planned_segment.function is not None]
    _log.info(
        "%d segments compiled as %d functions, %d operations interpreted; %d bytes predicted, the budget is %d",
        len(functions),
        len(set(functions)),
        sum(len(planned_segment.segment.pieces) for planned_segment in planned if planned_segment.function is None),
        fitted.account.peak,
        budget,
    )


def _rows(linked: Linked) -> list[Sequence[Event]]:
    """Return the events before each delivery. Events after the last delivery only free memory; dropping the slots does
    the same."""
    events, start, rows = linked.backward, 0, list[Sequence[Event]]()
    for at, event in enumerate(events):
        if isinstance(event, Deliver):
            rows.append(events[start:at])
            start = at + 1
    return rows


def _backward(
    compiler: InstructionCompiler, contract: StepContract, sections: Sequence[Sequence[Planned]]
) -> tuple[Callable[[Slots], list[torch.Tensor]], ...]:
    """Return a function for each delivery."""
    root = compiler.graph.root
    values = [[contract.gradients[number].value for number in numbers] for numbers in contract.deliveries]

    def segment(at: int) -> Callable[[Slots], list[torch.Tensor]]:
        backward_section = section(compiler, sections[at], values[at])
        later = {root[value] for follow in values[at + 1 :] for value in follow}
        emptied = {root[value] for value in values[at]} - later
        is_last = at == len(sections) - 1

        def run(slots: Slots) -> list[torch.Tensor]:
            (gradients,) = backward_section.run(slots)
            for owner in emptied:
                slots[owner] = None
            if is_last:
                slots.clear()
            return gradients

        return run

    return tuple(segment(at) for at in range(len(sections)))


def without_kernels() -> Engine:
    """Return the engine "compiled" for a dry run: Inductor's code around kernels runs, and no kernel does."""

    def start() -> Compile:
        known: dict[torch.device, Artefacts] = {}

        def compile_(step: LinkedStep, device: torch.device) -> CompiledStep:
            device = _meant(step, device)
            return compile_step(step, device, known.setdefault(device, Artefacts(device, kernels=False)))

        return compile_

    return COMPILED._replace(start=start)


COMPILED = Engine("compiled", "compiles segments of the step with Inductor", _start, exact=False)
AUTO = Engine(
    "auto", "compiles where there is a compiler, calls one operator after the other elsewhere", _start_auto, exact=False
)
