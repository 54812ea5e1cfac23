"""Converts segments to instructions over slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from ...errors import ExecutionError
from ...flat_step.graph import Graph
from ...format.tensor_type import TensorType
from ...link.events import Event, Free, View
from ...operator_calls.constants import Constants
from ...operator_calls.overloads import TORCH_DTYPES, described, empty, laid_out, storage_address
from ...torch_private.operators import OpOverload
from ..eager.instructions import Instruction, InstructionCompiler, Slots
from ..eager.part import InstructionPart
from .artefacts import Function
from .segments import Segment, views_to
from .times import Run
from .workspaces import made_up

_NO_DATA = torch.device("meta")


def interpreted(graph: Graph, segment: Segment) -> list[Event]:
    """Return the segment's events operator by operator, with the views that each operator reads."""
    events: list[Event] = []
    for piece in segment.pieces:
        op = graph.operations[piece.event.op]
        views, viewed = view_events(graph, op.reads)
        events += [*views, piece.event]
        if free := (*viewed, *piece.dead):
            events.append(Free(free))
    return events


def view_events(graph: Graph, values: Iterable[int]) -> tuple[list[Event], list[int]]:
    """Return the events that create the views among `values` from the owners of their storages, and all values that
    these events create."""
    operations = dict.fromkeys(index for value in values for index in views_to(graph, value))
    viewed = [value for index in operations for value in graph.operations[index].writes if value is not None]
    return [View(index) for index in operations], viewed


class Reader:
    """Reads values from slots, and creates the views among them."""

    def __init__(self, compiler: InstructionCompiler, values: Sequence[int]) -> None:
        events, self._views = view_events(compiler.graph, values)
        self.instructions = compiler.instructions(events)
        self._values = tuple(values)

    def read(self, slots: Slots) -> list[torch.Tensor]:
        """Return the tensors. Call this after `instructions` have run."""
        tensors = [slots[value] for value in self._values]
        for value in self._views:
            slots[value] = None
        return tensors


class SegmentCall:
    """Calls a compiled segment with tensors from slots.

    The first run records which inputs do not have the memory layout that the function expects, and which results share
    a storage. These are copied in every run, because each storage has one owner in the slots. Strides of dimensions of
    size 1 do not move elements, but kernels choose layouts by them. So inputs get the strides of the prediction.
    """

    def __init__(self, segment: Segment, function: Function, name: str, device: torch.device) -> None:
        self._segment, self._about, self._function, self._name = segment, function.about, function.run, name
        self._device = device
        self._in_layout: tuple[int, ...] = ()
        self._restrided: tuple[tuple[int, tuple[int, ...]], ...] = ()
        self._copied: tuple[int, ...] = ()

    @property
    def instruction(self) -> Instruction:
        return Instruction(self._run, (), self._name, self._first)

    def _run(self, slots: Slots) -> None:
        segment = self._segment
        given = [slots[owner] for owner in segment.reads]
        for at in self._in_layout:
            given[at] = _copy(given[at], self._about.input_types[at], self._device)
        for at, strides in self._restrided:
            given[at] = given[at].as_strided(given[at].shape, strides)
        for owner in segment.dead:
            slots[owner] = None
        results = self._function(given)
        for owner, tensor in zip(segment.makes, results, strict=True):
            slots[owner] = tensor
        for at in self._copied:
            slots[segment.makes[at]] = _copy(results[at], self._about.output_types[at], self._device)

    def _first(self, slots: Slots, graph: Graph) -> None:
        segment, about = self._segment, self._about
        pairs = list(zip(segment.reads, about.input_types, strict=True))
        self._in_layout = tuple(at for at, (owner, kind) in enumerate(pairs) if not laid_out(slots[owner], kind))
        strides = [tuple(empty(kind, _NO_DATA).stride()) for kind in about.input_types]
        self._restrided = tuple(
            (at, strides[at])
            for at, (owner, _) in enumerate(pairs)
            if at not in self._in_layout and tuple(slots[owner].stride()) != strides[at]
        )
        # Keep the inputs' storages, so that no result reuses an address of theirs.
        kept = [slots[owner] for at, (owner, _) in enumerate(pairs) if at not in about.donated]
        seen = {storage_address(tensor) for tensor in kept} - {0}
        kept = [tensor.untyped_storage() for tensor in kept]
        self._run(slots)
        copied = set(self._copied)
        # Of several results in one storage, the largest one keeps it.
        order = sorted(range(len(segment.makes)), key=lambda at: -about.output_types[at].nbytes)
        for at in order:
            tensor, kind = slots[segment.makes[at]], about.output_types[at]
            self._check(tensor, kind)
            where = storage_address(tensor)
            if where and (where in seen or tensor.untyped_storage().nbytes() > kind.nbytes):
                copied.add(at)
                slots[segment.makes[at]] = _copy(tensor, kind, self._device)
            seen.add(where)
        self._copied = tuple(sorted(copied))  # includes those of overlapping calls

    def _check(self, result: torch.Tensor, kind: TensorType) -> None:
        dtype = TORCH_DTYPES[kind.dtype]
        if result.dtype is not dtype or tuple(result.shape) != kind.shape or not laid_out(result, kind):
            raise ExecutionError(
                f"{self._name}: a compiled result is {described(result)}, the file declares {kind}"
                "\n  use engine='eager', or plan again with the installed version of torch"
            )


class Interpretation:
    """Runs segments of a step by the interpreter, on artificial data."""

    def __init__(
        self, graph: Graph, operators: Mapping[str, OpOverload], device: torch.device, constants: Constants
    ) -> None:
        self._graph, self._device = graph, device
        self._compiler = InstructionCompiler(graph, operators, device, constants)

    def of(self, segment: Segment) -> Callable[[], Run]:
        """Return a function that prepares a run of the segment."""
        instructions = self._compiler.instructions(interpreted(self._graph, segment))
        part = InstructionPart(instructions, None)

        def prepared() -> Run:
            slots = self._compiler.slots()
            for owner in segment.reads:
                if slots[owner] is None:
                    slots[owner] = made_up(empty(self._graph.values[owner].type, self._device))

            def run() -> Slots:
                part.run(slots)
                return slots

            return run

        return prepared


def _copy(tensor: torch.Tensor, kind: TensorType, device: torch.device) -> torch.Tensor:
    return empty(kind, device).copy_(tensor)
