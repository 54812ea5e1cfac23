"""Linked events -> closures over one list of slots, prepared once per device. The step itself is then a plain loop.

Slots: one per value of the graph, then one per literal argument, then one per saved generator state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...errors import ScheduleError, ScheduleFaultsError
from ...format.limits import MAX_FAULTS
from ...kernels.overloads import check_kernels, check_operator, constant, in_place, kernel, literal, overload
from ...link.events import Event, Execution, Free, Linked, Rerun, Run, Turn, Update, View
from ...link.inference import forward_alone
from ...step.graph import Graph, Op, Ref

Slots = list[Any]
Call = Callable[[Slots], None]


class Instruction(NamedTuple):
    """One step: what to run, the slots to empty afterwards, the operation's id for errors."""

    run: Call
    free: tuple[int, ...]
    id: str


class Watch(NamedTuple):
    """A tensor that backward reads and that somebody else could change meanwhile. at: position in sources, or slot."""

    at: int
    what: str


class Gradient(NamedTuple):
    """position: in `sources`, of the tensor that it belongs to. copy: its storage is another's too.

    tangents: slots of the tangents that it depends on. Without any of them the tensor gets no gradient, as in eager.
    """

    position: int
    slot: int
    copy: bool
    tangents: frozenset[int]

    def depends(self, given: set[int]) -> bool:
        return not self.tangents or not given.isdisjoint(self.tangents)


class Program(NamedTuple):
    """A linked step for one device. Numbers are slots, or positions in `sources` where it says so."""

    device: torch.device
    empty: Slots  # copied for every forward; holds constants and literals
    sources: tuple[int, ...]  # parameters, buffers and inputs
    forward: tuple[Instruction, ...]
    inference: tuple[Instruction, ...]  # forward when no backward follows: nothing is kept for it
    backward: tuple[Instruction, ...]
    free_at_turn: tuple[int, ...]
    updates: tuple[tuple[int, int], ...]  # position in `sources`, slot of the new contents
    preserve: tuple[int, ...]
    gradients: tuple[Gradient, ...]
    watch: tuple[Watch, ...]  # positions in `sources`
    watch_outputs: tuple[Watch, ...]  # slots
    tangents: dict[str, int]  # by name: slots of the tangents that backward reads


def operators(graph: Graph, where: Sequence[str], namespaces: Collection[str] = ()) -> dict[str, OpOverload]:
    """The live operator of every name in the graph. where: JSON pointer of every operation (`Expanded.where`).

    Raises ScheduleError R050–R053, with all faults.
    """
    found: dict[str, OpOverload] = {}
    faults: dict[str, ScheduleError] = {}  # by pointer: the instances of a block share its operations' lines
    for op, at in zip(graph.operations, where, strict=True):
        try:
            if op.op not in found:
                found[op.op] = overload(op.op, namespaces)
        except ScheduleError as fault:
            faults[at] = ScheduleError(fault.code, fault.message, f"{at}/op", fault.hint)
        else:
            try:
                check_operator(op, found[op.op])
            except ScheduleError as fault:
                faults[at] = ScheduleError(fault.code, fault.message, at, fault.hint)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        raise ScheduleFaultsError(faults.values()) if len(faults) > 1 else next(iter(faults.values()))
    return found


def prepare(linked: Linked, live: dict[str, OpOverload], order: Iterable[str], device: torch.device) -> Program:
    """Compile for `device`. order: names of inputs, parameters and buffers, as `Program.sources` shall have them.

    Raises BindError if the file was planned for another class of device and lacks kernels on this one.
    """
    graph = linked.graph
    if device.type != graph.device:
        check_kernels(tuple(live.items()), device, graph.device)
    compiler = _Compiler(graph, live, device)
    forward = compiler.instructions(linked.forward)
    backward = compiler.instructions(linked.backward)
    inference = compiler.instructions(forward_alone(linked))
    preserved = tuple(e.buffer for e in linked.forward if isinstance(e, Update) and e.preserves)
    turn = linked.events[linked.turn]
    assert isinstance(turn, Turn)
    numbers = {value.name: i for i, value in enumerate(graph.values)}
    sources = tuple(numbers[name] for name in order)
    position = {value: at for at, value in enumerate(sources)}
    read, resident = _reads_of_backward(linked)
    return Program(
        device,
        compiler.slots(),
        sources,
        forward,
        inference,
        backward,
        turn.frees,
        tuple((position[buffer], value) for buffer, value in graph.updates),
        preserved,
        _gradients(graph, position),
        tuple(Watch(position[i], _label(graph, i)) for i in sources if i in read and i not in preserved),
        tuple(
            Watch(v, f"output {graph.values[v].name!r}")
            for v in graph.outputs
            if graph.root[v] in resident and graph.values[graph.root[v]].producer >= 0
        ),
        {graph.values[i].name: i for i in sorted(read) if graph.values[i].kind == "tangent"},
    )


def _label(graph: Graph, value: int) -> str:
    return f"{graph.values[value].kind} {graph.values[value].name!r}"


def _reads_of_backward(linked: Linked) -> tuple[set[int], set[int]]:
    """Owners of the storages that backward reads; and those among them that forward has left behind for it."""
    graph, root = linked.graph, linked.graph.root
    read: set[int] = {root[gradient] for _, gradient in graph.gradients}
    resident, made = set(read), set[int]()
    for event in linked.backward:
        if not isinstance(event, Execution):
            continue
        op = graph.operations[event.op]
        read.update(root[v] for v in op.reads)
        resident.update(root[v] for v in op.reads if v not in made)
        made.update(v for v in op.writes if v is not None)
    return read, resident


def _gradients(graph: Graph, position: dict[int, int]) -> tuple[Gradient, ...]:
    depends: list[frozenset[int]] = [
        frozenset((i,)) if value.kind == "tangent" else frozenset() for i, value in enumerate(graph.values)
    ]
    for op in graph.operations[graph.backward_start :]:
        through = frozenset().union(*(depends[v] for v in op.reads))
        for value in op.writes:
            if value is not None:
                depends[value] = through
    found: list[Gradient] = []
    taken: dict[int, int] = {}  # owner of a storage -> the gradient value that autograd may keep as `.grad`
    for source, value in graph.gradients:
        owner = graph.root[value]
        copy = graph.values[owner].producer < 0 or taken.setdefault(owner, value) != value
        found.append(Gradient(position[source], value, copy, depends[value]))
    return tuple(found)


class _Compiler:
    def __init__(self, graph: Graph, live: dict[str, OpOverload], device: torch.device) -> None:
        self.graph, self.live, self.device = graph, live, device
        self.constants: list[Any] = []
        self.states: dict[int, int] = {}  # random operation -> its slot, numbered from -1 downwards
        self._known: dict[Any, int] = {}
        self._calls: dict[
            tuple[int, int | None], Call
        ] = {}  # by operation and argument written over: runs and reruns share it

    def slots(self) -> Slots:
        slots: Slots = [None] * len(self.graph.values)
        for index, value in enumerate(self.graph.values):
            if value.kind == "constant":
                slots[index] = constant(value.type, value.data or (), self.device)
        return [*slots, *self.constants, *[None] * len(self.states)]

    def instructions(self, events: Sequence[Event]) -> tuple[Instruction, ...]:
        """One for every event that calls an operator, with the slots that are emptied behind it."""
        found: list[Instruction] = []
        for event in events:
            if isinstance(event, Execution):
                found.append(Instruction(self._run(event), (), self.graph.operations[event.op].id))
            elif isinstance(event, Free):
                found[-1] = found[-1]._replace(free=event.values)
        return tuple(found)

    def _run(self, event: Execution) -> Call:
        op = self.graph.operations[event.op]
        overwrites = None if isinstance(event, View) else event.overwrites
        key = event.op, overwrites
        run = self._calls.get(key) or self._calls.setdefault(key, self._call(op, overwrites))
        if not op.random or not (isinstance(event, Rerun) or (isinstance(event, Run) and event.saves_state)):
            return run
        state = self.states.setdefault(event.op, -1 - len(self.states))
        generator = self._generator(op)
        if isinstance(event, Rerun):
            return _replay(run, generator, state, event.drops_state)
        return _save(run, generator, state)

    def _generator(self, op: Op) -> torch.Generator:
        on_cpu = all(self.graph.values[v].type.cpu for v in op.writes if v is not None)
        if on_cpu or self.device.type == "cpu":
            return torch.default_generator
        return torch.cuda.default_generators[self.device.index or 0]

    def _call(self, op: Op, overwrites: int | None) -> Call:
        args = list(op.args)
        if overwrites is not None:
            args.insert(0, args.pop(overwrites))
        function = kernel(op.op, self.live[op.op]) if overwrites is None else in_place(op)._op
        kwargs = {k: literal(v, self.device) for k, v in op.kwargs.items() if not _refers(v)}
        if len(kwargs) < len(op.kwargs) or any(isinstance(a, tuple) and _refers(a) for a in args):
            getters = [self._getter(a) for a in args]
            named = {k: self._getter(v) for k, v in op.kwargs.items()}
            return _general(function, getters, named, op.writes, op.multiple)
        where = [a.value if isinstance(a, Ref) else self._constant(literal(a, self.device)) for a in args]
        if op.multiple:
            return _several(function, _picker(where), kwargs, op.writes)
        return _one(function, where, kwargs, op.writes[0])

    def _constant(self, value: Any) -> int:
        """The slot of a literal argument; equal literals share one."""
        key = repr((type(value), value))
        if key not in self._known:
            self._known[key] = len(self.graph.values) + len(self.constants)
            self.constants.append(value)
        return self._known[key]

    def _getter(self, argument: Any) -> Callable[[Slots], Any]:
        if isinstance(argument, Ref):
            return itemgetter(argument.value)
        if isinstance(argument, tuple) and _refers(argument):
            parts = [self._getter(a) for a in argument]
            return lambda slots: [part(slots) for part in parts]
        return itemgetter(self._constant(literal(argument, self.device)))


def _refers(argument: Any) -> bool:
    return isinstance(argument, Ref) or (isinstance(argument, tuple) and any(map(_refers, argument)))


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


def _save(run: Call, generator: torch.Generator, state: int) -> Call:
    def saving(slots: Slots) -> None:
        slots[state] = generator.get_state()
        run(slots)

    return saving


def _replay(run: Call, generator: torch.Generator, state: int, last: bool) -> Call:
    """Run from the state of the first run, and leave the generator as if nothing had happened."""

    def replaying(slots: Slots) -> None:
        current = generator.get_state()
        generator.set_state(slots[state])
        try:
            run(slots)
        finally:
            generator.set_state(current)
        if last:
            slots[state] = None

    return replaying
