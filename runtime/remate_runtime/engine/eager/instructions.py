"""Converts the events of a linked step to closures over a list of slots, once per device. A step is then a plain loop.

There is a slot for each value of the graph, then one for each literal argument and for each number that follows from
live attributes, then one for each saved generator state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.profiler import record_function

from ...errors import ExecutionError
from ...flat_step.graph import Graph, Number, Op, Ref
from ...format.json_values import is_tuple
from ...format.number_text import computed, parse_number
from ...format.tensor_type import TensorType
from ...link.events import (
    BackwardStart,
    Deliver,
    Event,
    Execution,
    Free,
    PageBack,
    PageGone,
    PageOut,
    PageReady,
    RecomputeRun,
    Run,
    Update,
    View,
)
from ...operator_calls.bindings import binding
from ...operator_calls.constants import Constants
from ...operator_calls.overloads import in_place, kernel, laid_out_as_without, literal, over_the_second
from ...operators import IN_PLACE
from ...torch_private.operators import OpOverload
from .first_run import counts_elements, judged, judged_placed
from .page_instructions import moving
from .placed import Placed, ResultPlace, Slots, writing
from .random_runs import replaying, saving

Call = Callable[[Slots], None]
NOWHERE: Mapping[int, Placed] = {}


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        run: Called with the slots.
        free: The slots to empty afterwards.
        id: The operation's id, for errors.
        first: Called instead of `run` in the first run, with the slots and the step: it also checks the results against
            the file. None: there is nothing to check.
    """

    run: Call
    free: tuple[int, ...]
    id: str
    first: Callable[[Slots, Graph], None] | None = None


class InstructionCompiler:
    """Builds instructions, and assigns slots.

    Attributes:
        views: Slots of the existing tensors that results are written into.
        states: Slot of the generator state of each random operation, numbered from -1 downwards.
        pages: Slot of the step's pages; None if it pages nothing.
    """

    def __init__(
        self,
        graph: Graph,
        live: Mapping[str, OpOverload],
        device: torch.device,
        tensors: Constants,
        ranges: str | None = None,
        placed: Mapping[int, Placed] = NOWHERE,
    ) -> None:
        """Prepare for a step.

        Args:
            graph: The step.
            live: The live operator of every name.
            device: The device.
            tensors: Creates the tensors of constants.
            ranges: Each instruction becomes a range of torch's profiler, with this prefix to its id. None: no ranges.
            placed: Executions that write their results into existing tensors, by position of the event.
        """
        self.graph, self.live, self.device, self._tensors, self._ranges = graph, live, device, tensors, ranges
        self._placed, self.views = placed, dict[ResultPlace, int]()
        self.constants: list[Any] = []
        self._numbers: dict[Number, int] = {}  # slots
        self.states: dict[int, int] = {}
        self._strides = counts_elements(graph)
        self.pages: int | None = None
        self._known: dict[Any, int] = {}
        # By operation and overwritten argument: recomputations share calls.
        self._calls: dict[tuple[int, int | None], Call] = {}
        # By operation with a call: the slots of its literals by position; None if some have no slot of their own.
        self.literals: dict[int, dict[int, int] | None] = {}

    def slots(self) -> Slots:
        slots: Slots = [None] * len(self.graph.values)
        for index, value in enumerate(self.graph.values):
            if value.kind == "constant":
                slots[index] = self._tensors.tensor(value.type, value.data or (), self.device)
        return [*slots, *self.constants, *[None] * len(self.states)]

    def filler(self) -> Callable[[Slots], None]:
        """Return a function that computes the numbers that follow from live attributes, and fills their slots.

        Call it after the slots of the attributes are filled and before anything else runs, so that all of a step uses
        the same numbers. It raises ExecutionError if a number has no finite value.
        """
        graph = self.graph
        numbers = [
            (slot, number.values, computed(parse_number(number.text)), number) for number, slot in self._numbers.items()
        ]

        def fill(slots: Slots) -> None:
            for slot, values, compute, number in numbers:
                given = [slots[value] for value in values]
                try:
                    slots[slot] = compute(given)
                except (ArithmeticError, ValueError):
                    raise _no_number(graph, number, given) from None

        return fill

    def instructions(self, events: Sequence[Event], first: int | None = None) -> tuple[Instruction, ...]:
        """Return an instruction for every event that computes, with the slots to empty afterwards.

        Args:
            events: The events.
            first: Position of the first event in the step. None: the events are not of the step, and none is placed.
        """
        instructions: list[Instruction] = []
        free: tuple[int, ...] = ()  # of a `Free` after the event; the loop runs backwards
        for at in range(len(events) - 1, -1, -1):
            event = events[at]
            match event:
                case Run() | RecomputeRun() | View():
                    placed = None if first is None else self._placed.get(first + at)
                    instructions.append(self._instruction(event, placed, free))
                    free = ()
                case PageOut() | PageGone() | PageBack() | PageReady():
                    if self.pages is None:
                        self.pages = self.spare()
                    name = self.graph.values[event.value].name
                    instructions.append(Instruction(moving(event, self.pages, self.graph), free, name))
                    free = ()
                case Free(values=values):
                    free = values
                case Update() | BackwardStart() | Deliver():
                    pass  # they happen between forward and backward, or between segments
        return tuple(instructions[::-1])

    def _instruction(self, event: Execution, placed: Placed | None, free: tuple[int, ...]) -> Instruction:
        op, run = self.graph.operations[event.op], self._run(event, placed)
        if placed is None:
            first = judged(run, op, event, self.device, self._strides)
        else:
            first = judged_placed(run, op, self.device, [self._view(place) for place in placed.places])
        instruction = Instruction(run, free, op.id, first)
        return instruction if self._ranges is None else self.ranged(instruction, isinstance(event, RecomputeRun))

    def ranged(self, instruction: Instruction, recompute: bool) -> Instruction:
        """Return the instruction as a range of torch's profiler, if ranges were requested."""
        if self._ranges is None:
            return instruction
        name = f"{self._ranges}{instruction.id}{' (recompute)' if recompute else ''}"
        first = instruction.first and _in_range(instruction.first, name)
        return instruction._replace(run=_in_range(instruction.run, name), first=first)

    def _run(self, event: Execution, placed: Placed | None) -> Call:
        op = self.graph.operations[event.op]
        if placed is None:
            overwrites = None if isinstance(event, View) else event.overwrites
            key = event.op, overwrites
            run = self._calls.get(key) or self._calls.setdefault(key, self._call(event.op, overwrites))
        else:
            run = self._writing(op, placed)
        if not op.random or not (isinstance(event, RecomputeRun) or (isinstance(event, Run) and event.saves_state)):
            return run
        state = self.states.setdefault(event.op, -1 - len(self.states))
        generator = self._generator(op)
        if isinstance(event, RecomputeRun):
            return replaying(run, generator, state, event.drops_state)
        return saving(run, generator, state)

    def _generator(self, op: Op) -> torch.Generator:
        on_cpu = all(self.graph.values[v].type.cpu for v in op.writes if v is not None)
        if on_cpu or self.device.type == "cpu":
            return torch.default_generator
        return torch.cuda.default_generators[self.device.index or 0]

    def _call(self, index: int, overwrites: int | None) -> Call:
        op = self.graph.operations[index]
        args = list(op.args)
        if overwrites is not None:
            args.insert(0, args.pop(overwrites))
        if overwrites is None:
            function = binding(op.op, args, op.kwargs) or kernel(op.op, self.live[op.op])
        elif overwrites and len({self.graph.values[value].type.dtype for value in op.reads}) > 1:
            function = over_the_second(op)
        else:
            form = IN_PLACE[op.op]
            function = (binding(form.op, args, op.kwargs) if form.through is None else None) or in_place(op)
        # Eager PyTorch adds a gradient to another one in place, too.
        adds = index >= self.graph.backward_start and op.op == "aten.add.Tensor"
        if overwrites is not None and not adds and _has_odd_axes(self.graph.values[op.reads[0]].type):
            function = laid_out_as_without(function, op)
        kwargs = {k: literal(v, self.device) for k, v in op.kwargs.items() if not _refers(v)}
        if len(kwargs) < len(op.kwargs) or any(is_tuple(a) and _refers(a) for a in args):
            getters = [self._getter(a) for a in args]
            named = {k: self._getter(v) for k, v in op.kwargs.items()}
            self.literals[index] = None
            return _general(function, getters, named, op.writes, op.multiple)
        self.literals[index] = {k: self._slot(a) for k, a in enumerate(op.args) if not isinstance(a, Ref | Number)}
        where = [self._slot(a) for a in args]
        if op.multiple:
            return _several(function, _picker(where), kwargs, op.writes)
        return _one(function, where, kwargs, op.writes[0])

    def _writing(self, op: Op, placed: Placed) -> Call:
        """Return a call that writes into existing tensors."""
        form = placed.form
        args, kwargs = (op.args, op.kwargs) if form.argument_count is None else (op.args[: form.argument_count], {})
        into = [self._view(place) for place in placed.places]
        to = [value for value in op.writes if value is not None]
        live = any(map(_refers, kwargs.values()))
        named = {k: self._getter(v) if live else literal(v, self.device) for k, v in kwargs.items()}
        if any(is_tuple(a) and _refers(a) for a in args):
            getters = [self._getter(a) for a in args]
            return writing(form, lambda slots: [get(slots) for get in getters], named, live, into, to)
        return writing(form, _picker([self._slot(a) for a in args]), named, live, into, to)

    def _view(self, place: ResultPlace) -> int:
        """Return the slot of the tensor at a place."""
        if place not in self.views:
            self.views[place] = self.spare()
        return self.views[place]

    def spare(self) -> int:
        """Return an unused slot."""
        self.constants.append(None)
        return len(self.graph.values) + len(self.constants) - 1

    def _slot(self, argument: object) -> int:
        """Return the slot of an argument that is not a list with values."""
        if isinstance(argument, Ref):
            return argument.value
        if not isinstance(argument, Number):
            return self._constant(literal(argument, self.device))
        if argument not in self._numbers:
            self._numbers[argument] = self.spare()
        return self._numbers[argument]

    def _constant(self, value: object) -> int:
        """Return the slot of a literal argument. Equal literals share a slot."""
        key = repr((type(value), value))
        if key not in self._known:
            self._known[key] = len(self.graph.values) + len(self.constants)
            self.constants.append(value)
        return self._known[key]

    def _getter(self, argument: object) -> Callable[[Slots], Any]:
        if is_tuple(argument) and _refers(argument):
            parts = [self._getter(a) for a in argument]
            return lambda slots: [part(slots) for part in parts]
        if isinstance(argument, Ref | Number):
            return itemgetter(self._slot(argument))
        value = literal(argument, self.device)  # not in a slot: another operation's literal there may be another size's
        return lambda slots: value


def _in_range(run: Callable[..., None], name: str) -> Callable[..., None]:
    def running(*given: object) -> None:
        with record_function(name):
            run(*given)

    return running


def _no_number(graph: Graph, number: Number, given: Sequence[float]) -> ExecutionError:
    names = [graph.values[value].name for value in number.values]
    text = re.sub(r"%([0-9]+)", lambda match: names[int(match[1])], number.text)
    values = ", ".join(f"{name} is {value!r}" for name, value in zip(names, given, strict=True))
    return ExecutionError(
        f"{values}, where {text} has no finite value\n  keep it in the range that the model computes with"
    )


def _refers(argument: object) -> bool:
    return isinstance(argument, Ref | Number) or (is_tuple(argument) and any(map(_refers, argument)))


def _picker(where: Sequence[int]) -> Callable[[Slots], Iterable[Any]]:
    if len(where) > 1:
        return itemgetter(*where)
    return lambda slots: [slots[i] for i in where]


def _has_odd_axes(kind: TensorType) -> bool:
    """Whether images of this type may have unusual strides: those of axes of one element, which a type leaves open."""
    return len(kind.shape) > 3 and 1 in kind.shape


def _one(function: Callable[..., object], where: Sequence[int], kwargs: dict[str, Any], to: int | None) -> Call:
    """Return a call with one output. It is assigned directly to its slot, so that no local name keeps a dead tensor."""
    if to is None:
        return _several(function, _picker(where), kwargs, ())
    if len(where) == 1 and not kwargs:
        first = where[0]

        def unary(slots: Slots) -> None:
            slots[to] = function(slots[first])

        return unary
    pick = _picker(where)
    if kwargs:

        def named(slots: Slots) -> None:
            slots[to] = function(*pick(slots), **kwargs)

        return named

    def plain(slots: Slots) -> None:
        slots[to] = function(*pick(slots))

    return plain


def _several(
    function: Callable[..., Any],
    pick: Callable[[Slots], Iterable[Any]],
    kwargs: dict[str, Any],
    writes: Sequence[int | None],
) -> Call:
    kept = tuple((k, to) for k, to in enumerate(writes) if to is not None)

    def run(slots: Slots) -> None:
        results = function(*pick(slots), **kwargs)
        for k, to in kept:
            slots[to] = results[k]

    return run


def _general(
    function: Callable[..., Any],
    getters: Sequence[Callable[[Slots], Any]],
    named: dict[str, Callable[[Slots], Any]],
    writes: Sequence[int | None],
    multiple: bool,
) -> Call:
    """Return a call with tensors in lists (`cat`, `index`) or among keyword arguments."""
    kept = tuple((k, to) for k, to in enumerate(writes) if to is not None)

    def run(slots: Slots) -> None:
        results = function(*[get(slots) for get in getters], **{k: get(slots) for k, get in named.items()})
        for k, to in kept:
            slots[to] = results[k] if multiple else results

    return run
