"""Events of a linked step -> closures over one list of slots, made once per device. The step itself is then a plain
loop.

Slots: one per value of the graph, then one per literal argument and per number that follows from live attributes, then
one per saved generator state.
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
from ...format.number_text import computed, parse_number
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
from ...operator_calls.overloads import in_place, kernel, literal
from ...operators import IN_PLACE
from ...torch_private.operators import OpOverload
from .first_run import counts_elements, judged, judged_placed
from .pages import moving
from .placed import Placed, ResultPlace, Slots, writing
from .random_runs import replaying, saving

Call = Callable[[Slots], None]
NOWHERE: Mapping[int, Placed] = {}


class Instruction(NamedTuple):
    """What to run, the slots to empty afterwards, the operation's id for errors."""

    run: Call
    free: tuple[int, ...]
    id: str


class InstructionCompiler:
    """made: tensors of constants. ranges: each instruction is a range of torch's profiler, with this before its id;
    None: none is. placed: executions whose results are written into tensors that are there, by position of the event.
    views: the slots that will hold these."""

    def __init__(
        self,
        graph: Graph,
        live: Mapping[str, OpOverload],
        device: torch.device,
        made: Constants,
        ranges: str | None = None,
        placed: Mapping[int, Placed] = NOWHERE,
    ) -> None:
        self.graph, self.live, self.device, self._made, self._ranges = graph, live, device, made, ranges
        self._placed, self.views = placed, dict[ResultPlace, int]()
        self.constants: list[Any] = []
        self._numbers: dict[Number, int] = {}  # their slots
        self.states: dict[int, int] = {}  # random operation -> its slot, numbered from -1 downwards
        self._strides = counts_elements(graph)
        self.pages: int | None = None  # the slot of what the step pages, if it does
        self._known: dict[Any, int] = {}
        self._calls: dict[
            tuple[int, int | None], Call
        ] = {}  # by operation and argument written over: recomputations share it

    def slots(self) -> Slots:
        slots: Slots = [None] * len(self.graph.values)
        for index, value in enumerate(self.graph.values):
            if value.kind == "constant":
                slots[index] = self._made.tensor(value.type, value.data or (), self.device)
        return [*slots, *self.constants, *[None] * len(self.states)]

    def filler(self) -> Callable[[Slots], None]:
        """What computes the numbers that follow from live attributes, once the slots hold those; to be called before
        anything else runs, so that all of a step has the same ones. It raises ExecutionError where there is no such
        number."""
        graph = self.graph
        found = [
            (slot, number.values, computed(parse_number(number.text)), number) for number, slot in self._numbers.items()
        ]

        def fill(slots: Slots) -> None:
            for slot, values, compute, number in found:
                given = [slots[value] for value in values]
                try:
                    slots[slot] = compute(given)
                except (ArithmeticError, ValueError):
                    raise _no_number(graph, number, given) from None

        return fill

    def instructions(
        self, events: Sequence[Event], judge: bool = False, first: int | None = None
    ) -> tuple[Instruction, ...]:
        """One for every event that computes, with the slots that are emptied behind it. judge: hold the results against
        the file. first: position of the first event in the step; None: these are others, and nothing of them is
        placed."""
        found: list[Instruction] = []
        for at, event in enumerate(events):
            match event:
                case Run() | RecomputeRun() | View():
                    placed = None if first is None else self._placed.get(first + at)
                    run = self._run(event, placed)
                    if judge and placed is not None:
                        into = [self._view(place) for place in placed.places]
                        run = judged_placed(run, self.graph, event, self.device, into)
                    elif judge:
                        run = judged(run, self.graph, event, self.device, self._strides)
                    made = Instruction(run, (), self.graph.operations[event.op].id)
                    found.append(self.ranged(made, isinstance(event, RecomputeRun)))
                case PageOut() | PageGone() | PageBack() | PageReady():
                    if self.pages is None:
                        self.pages = self.spare()
                    found.append(
                        Instruction(moving(event, self.pages, self.graph), (), self.graph.values[event.value].name)
                    )
                case Free(values=values):
                    found[-1] = found[-1]._replace(free=values)
                case Update() | BackwardStart() | Deliver():
                    pass  # happen between the instructions of forward and those of backward, and between segments
        return tuple(found)

    def ranged(self, instruction: Instruction, recompute: bool) -> Instruction:
        """The instruction as a range of torch's profiler by its id, if that is requested."""
        if self._ranges is None:
            return instruction
        name = f"{self._ranges}{instruction.id}{' (recompute)' if recompute else ''}"
        return instruction._replace(run=_in_range(instruction.run, name))

    def _run(self, event: Execution, placed: Placed | None) -> Call:
        op = self.graph.operations[event.op]
        if placed is None:
            overwrites = None if isinstance(event, View) else event.overwrites
            key = event.op, overwrites
            run = self._calls.get(key) or self._calls.setdefault(key, self._call(op, overwrites))
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

    def _call(self, op: Op, overwrites: int | None) -> Call:
        args = list(op.args)
        if overwrites is not None:
            args.insert(0, args.pop(overwrites))
        if overwrites is None:
            function = binding(op.op, args, op.kwargs) or kernel(op.op, self.live[op.op])
        else:
            form = IN_PLACE[op.op]
            function = (binding(form.op, args, op.kwargs) if form.through is None else None) or in_place(op)
        kwargs = {k: literal(v, self.device) for k, v in op.kwargs.items() if not _refers(v)}
        if len(kwargs) < len(op.kwargs) or any(isinstance(a, tuple) and _refers(a) for a in args):
            getters = [self._getter(a) for a in args]
            named = {k: self._getter(v) for k, v in op.kwargs.items()}
            return _general(function, getters, named, op.writes, op.multiple)
        where = [self._slot(a) for a in args]
        if op.multiple:
            return _several(function, _picker(where), kwargs, op.writes)
        return _one(function, where, kwargs, op.writes[0])

    def _writing(self, op: Op, placed: Placed) -> Call:
        """A call that writes into tensors that are there."""
        form = placed.form
        args, kwargs = (op.args, op.kwargs) if form.takes is None else (op.args[: form.takes], {})
        into = [self._view(place) for place in placed.places]
        to = [value for value in op.writes if value is not None]
        live = any(map(_refers, kwargs.values()))
        named = {k: self._getter(v) if live else literal(v, self.device) for k, v in kwargs.items()}
        if any(isinstance(a, tuple) and _refers(a) for a in args):
            getters = [self._getter(a) for a in args]
            return writing(form, lambda slots: [get(slots) for get in getters], named, live, into, to)
        return writing(form, _picker([self._slot(a) for a in args]), named, live, into, to)

    def _view(self, place: ResultPlace) -> int:
        """The slot of the tensor at a place."""
        if place not in self.views:
            self.views[place] = self.spare()
        return self.views[place]

    def spare(self) -> int:
        """A slot that nothing else uses."""
        self.constants.append(None)
        return len(self.graph.values) + len(self.constants) - 1

    def _slot(self, argument: Any) -> int:
        """Where an argument lies that is no list with values in it."""
        if isinstance(argument, Ref):
            return argument.value
        if not isinstance(argument, Number):
            return self._constant(literal(argument, self.device))
        if argument not in self._numbers:
            self._numbers[argument] = self.spare()
        return self._numbers[argument]

    def _constant(self, value: Any) -> int:
        """The slot of a literal argument; equal literals share one."""
        key = repr((type(value), value))
        if key not in self._known:
            self._known[key] = len(self.graph.values) + len(self.constants)
            self.constants.append(value)
        return self._known[key]

    def _getter(self, argument: Any) -> Callable[[Slots], Any]:
        if isinstance(argument, tuple) and _refers(argument):
            parts = [self._getter(a) for a in argument]
            return lambda slots: [part(slots) for part in parts]
        return itemgetter(self._slot(argument))


def _in_range(run: Call, name: str) -> Call:
    def running(slots: Slots) -> None:
        with record_function(name):
            run(slots)

    return running


def _no_number(graph: Graph, number: Number, given: Sequence[float]) -> ExecutionError:
    names = [graph.values[value].name for value in number.values]
    text = re.sub(r"%([0-9]+)", lambda found: names[int(found[1])], number.text)
    told = ", ".join(f"{name} is {value!r}" for name, value in zip(names, given, strict=True))
    return ExecutionError(
        f"{told}, where {text} has no finite value\n  keep it in the range that the model computes with"
    )


def _refers(argument: Any) -> bool:
    return isinstance(argument, Ref | Number) or (isinstance(argument, tuple) and any(map(_refers, argument)))


def _picker(where: Sequence[int]) -> Callable[[Slots], Iterable[Any]]:
    if len(where) > 1:
        return itemgetter(*where)
    return lambda slots: [slots[i] for i in where]


def _one(function: Callable[..., Any], where: Sequence[int], kwargs: dict[str, Any], to: int | None) -> Call:
    """One output. Assigned straight into its slot: no local name may keep a tensor beyond its death."""
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
        made = function(*pick(slots), **kwargs)
        for k, to in kept:
            slots[to] = made[k]

    return run


def _general(
    function: Callable[..., Any],
    getters: Sequence[Callable[[Slots], Any]],
    named: dict[str, Callable[[Slots], Any]],
    writes: Sequence[int | None],
    multiple: bool,
) -> Call:
    """Tensors inside lists (`cat`, `index`) or among keyword arguments."""
    kept = tuple((k, to) for k, to in enumerate(writes) if to is not None)

    def run(slots: Slots) -> None:
        made = function(*[get(slots) for get in getters], **{k: get(slots) for k, get in named.items()})
        for k, to in kept:
            slots[to] = made[k] if multiple else made

    return run
