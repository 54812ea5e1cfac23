"""The linker: (graph, reruns) -> the flat list of executions, with everything that a schedule file leaves to be derived.

- A value lives from the execution that made it to its last read before its next execution; `Execution.free` says when its
  slot is emptied. A storage lives as long as a slot, or the caller, holds a tensor on it.
- Views are executed on demand: before a read, if their base has been made (again) since.
- An operation writes over an argument when that argument's storage dies there and the operator has an in-place form.
- A random operation that reruns saves the generator's state before its first run.
- A buffer that the step updates, and that backward still reads, keeps a copy of its old contents (`preserve`).

All of it holds for any reruns whatever, which is why an edit of a plan can change memory and time but no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..operators.tables import IN_PLACE
from ..step.graph import FlatRerun, Graph, Op, Ref
from ..step.rerun_rules import check_reruns

TURN = -1  # stands for the turn from forward to backward among operation indices
GENERATOR_BYTES = 5056  # the CPU generator's state is a tensor of this size; CUDA's few bytes stay off the device


class Execution(msgspec.Struct, frozen=True):
    """One execution. in_place: position in args of the argument written over, or -1. free: slots emptied after it."""

    op: int
    rerun: bool
    in_place: int
    free: tuple[int, ...]
    save_generator: bool


class Allocation(msgspec.Struct, frozen=True):
    """A storage: bytes held from step `birth` until after step `death` (indices in forward + [turn] + backward).

    value: the value it was made for; -1 for a saved generator state.
    """

    value: int
    nbytes: int
    birth: int
    death: int


class Linked(msgspec.Struct, frozen=True):
    """A schedule ready to execute. Steps count through forward, the turn, and backward."""

    graph: Graph
    forward: tuple[Execution, ...]
    backward: tuple[Execution, ...]
    free_at_turn: tuple[int, ...]  # slots emptied when forward has returned
    preserve: tuple[int, ...]  # buffer values cloned before the step updates them
    allocations: tuple[Allocation, ...]


def link(graph: Graph, reruns: Sequence[FlatRerun] = ()) -> Linked:
    """Derive the executions. Raise ScheduleError R04x for a rerun that is not legal."""
    order, again, turn = _executions(graph, reruns)
    frees, preserve = _liveness(graph, order, turn)
    in_place, allocations = _storages(graph, order, again, frees, turn, preserve)
    saves = _first_runs_of_random(graph, order, again)
    steps = [
        Execution(op, again[at], in_place[at], tuple(frees[at]), at in saves)
        for at, op in enumerate(order)
        if at != turn
    ]
    return Linked(
        graph, tuple(steps[:turn]), tuple(steps[turn:]), tuple(frees[turn]), tuple(preserve), tuple(allocations)
    )


def _executions(graph: Graph, reruns: Sequence[FlatRerun]) -> tuple[list[int], list[bool], int]:
    """Operation index and rerun flag of every execution in order, views put in on demand; the position of the turn."""
    check_reruns(graph, reruns)
    before: dict[int, list[int]] = {}
    for rerun in reruns:
        before.setdefault(rerun.before, []).append(rerun.op)
    walk = _Walk(graph)
    for index in range(len(graph.operations)):
        if index == graph.backward_start:
            walk.turn()
        for op in before.get(index, ()):
            walk.execute(op)
        if not graph.operations[index].view:
            walk.execute(index)
    if graph.backward_start == len(graph.operations):
        walk.turn()
    for _, gradient in graph.gradients:
        walk.make_view(gradient)
    return walk.order, walk.again, walk.turn_at


class _Walk:
    """Executions so far, and which incarnation of its base every view in a slot was made from."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order: list[int] = []
        self.again: list[bool] = []
        self.turn_at = 0
        self._ran = bytearray(len(graph.operations))
        self._born = [0] * len(graph.values)  # by owner of a storage: position of its latest execution
        self._seen = [-1] * len(graph.values)  # by view: the birth of the base that it was made from
        operations = graph.operations
        self._view = [v.producer >= 0 and operations[v.producer].view for v in graph.values]

    def execute(self, index: int) -> None:
        op = self.graph.operations[index]
        for value in op.reads:
            if self._view[value]:
                self.make_view(value)
        self._append(index)
        for value in op.writes:
            if value is not None:
                self._born[value] = len(self.order)

    def make_view(self, value: int) -> None:
        """Execute the chain of views that leads to `value`, as far as it is missing or older than its base."""
        values, operations = self.graph.values, self.graph.operations
        born = self._born[self.graph.root[value]]
        chain: list[int] = []
        while self._view[value] and self._seen[value] != born:
            chain.append(values[value].producer)
            value = operations[chain[-1]].reads[0]
        for index in reversed(chain):
            self._append(index)
            for made in operations[index].writes:
                if made is not None:
                    self._seen[made] = born

    def turn(self) -> None:
        for value in self.graph.outputs:
            self.make_view(value)
        for _, value in self.graph.updates:
            self.make_view(value)
        self.turn_at = len(self.order)
        self.order.append(TURN)
        self.again.append(False)
        for buffer, _ in self.graph.updates:  # a view made before the turn would show the updated contents
            self._born[buffer] = len(self.order)

    def _append(self, index: int) -> None:
        self.order.append(index)
        self.again.append(bool(self._ran[index]))
        self._ran[index] = 1


def _liveness(graph: Graph, order: list[int], turn: int) -> tuple[list[list[int]], list[int]]:
    """For every execution the slots to empty after it; and the updated buffers that backward reads."""
    live = {gradient for _, gradient in graph.gradients}
    updated = [buffer for buffer, _ in graph.updates]
    at_turn = {*graph.outputs, *(new for _, new in graph.updates), *updated}
    frees: list[list[int]] = [[] for _ in order]
    preserve: list[int] = []
    read: set[int] = set(at_turn) | live
    for at in range(len(order) - 1, -1, -1):
        if at == turn:
            preserve = [buffer for buffer in updated if buffer in live]
            frees[at] = sorted(at_turn - live)
            live |= at_turn
            continue
        op = graph.operations[order[at]]
        free = [value for value in op.reads if value not in live]
        for value in op.writes:
            if value is not None:
                if value in live:
                    live.discard(value)
                else:
                    free.append(value)
        frees[at] = free
        live.update(op.reads)
        read.update(op.reads)
    unread = (i for i, v in enumerate(graph.values) if v.producer < 0 and i not in read and v.kind != "tangent")
    frees[turn] = sorted({*frees[turn], *unread})
    return frees, preserve


def _first_runs_of_random(graph: Graph, order: list[int], again: list[bool]) -> set[int]:
    rerun = {op for op, more in zip(order, again, strict=True) if more and graph.operations[op].random}
    return {at for at, op in enumerate(order) if op in rerun and not again[at]}


def _storages(
    graph: Graph, order: list[int], again: list[bool], frees: list[list[int]], turn: int, preserve: list[int]
) -> tuple[list[int], list[Allocation]]:
    """Choose in-place executions, and follow every storage from birth to death."""
    book = _Book(graph)
    in_place = [-1] * len(order)
    for at, index in enumerate(order):
        if at == turn:
            book.turn(at, preserve)
        else:
            op = graph.operations[index]
            if op.view:
                store = book.store[op.reads[0]]
                for value in op.writes:
                    if value is not None:
                        book.hold(value, store)
            else:
                in_place[at] = book.overwritten(op, frees[at])
                book.make(op, at, in_place[at])
        for value in frees[at]:
            book.drop(value, at)
    allocations = book.finish(len(order) - 1)
    if graph.device != "cuda":
        allocations += _generator_states(graph, order, again)
    return in_place, allocations


def _generator_states(graph: Graph, order: list[int], again: list[bool]) -> list[Allocation]:
    last = {op: at for at, op in enumerate(order) if again[at] and op >= 0 and graph.operations[op].random}
    first = {op: at for at, op in enumerate(order) if op in last and not again[at]}
    return [Allocation(-1, GENERATOR_BYTES, first[op], last[op]) for op in first]


class _Book:
    """Which slot holds which storage. Storage -1 belongs to somebody else (parameters, buffers, inputs, constants)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.store: list[int] = [-1] * len(graph.values)
        self.held: list[int] = []  # by storage: slots (and pins) that hold it
        self.owner: list[int] = []  # by storage: the value it was made for
        self.birth: list[int] = []
        self.death: list[int] = []
        self.fixed: set[int] = set()  # storages that somebody outside may read: never written over
        self.nbytes = [graph.nbytes(i) if v.producer >= 0 else 0 for i, v in enumerate(graph.values)]

    def hold(self, value: int, store: int) -> None:
        old = self.store[value]
        if old >= 0:
            self.held[old] -= 1
        self.store[value] = store
        if store >= 0:
            self.held[store] += 1

    def new(self, value: int, at: int) -> int:
        self.held.append(0)
        self.owner.append(value)
        self.birth.append(at)
        self.death.append(-1)
        return len(self.owner) - 1

    def make(self, op: Op, at: int, overwritten: int) -> None:
        for value in op.writes:
            if value is not None:
                argument = op.args[overwritten] if overwritten >= 0 else None
                store = self.store[argument.value] if isinstance(argument, Ref) else self.new(value, at)
                self.hold(value, store)

    def drop(self, value: int, at: int) -> None:
        store = self.store[value]
        self.store[value] = -1
        if store >= 0:
            self.held[store] -= 1
            if self.held[store] == 0:
                self.death[store] = at

    def turn(self, at: int, preserve: list[int]) -> None:
        """The caller takes the outputs and keeps them; preserved buffers get storages; tangents arrive."""
        for value in self.graph.outputs:
            store = self.store[value]
            if store >= 0:
                self.held[store] += 1
                self.fixed.add(store)
        tangents = [i for i, v in enumerate(self.graph.values) if v.kind == "tangent"]
        for value in (*preserve, *tangents):
            store = self.new(value, at)
            self.fixed.add(store)
            self.hold(value, store)

    def overwritten(self, op: Op, free: list[int]) -> int:
        """Position of the argument that `op` may write over, or -1."""
        if op.op not in IN_PLACE or len(op.writes) != 1 or op.writes[0] is None or op.multiple:
            return -1
        made = op.writes[0]
        for position in IN_PLACE[op.op][1]:
            argument = op.args[position] if position < len(op.args) else None
            swappable = position == 0 or (len(op.args) == 2 and isinstance(op.args[0], Ref) and not op.kwargs)
            if swappable and isinstance(argument, Ref) and self._dies(argument.value, made, op, free):
                return position
        return -1

    def _dies(self, value: int, made: int, op: Op, free: list[int]) -> bool:
        store, values = self.store[value], self.graph.values
        if store < 0 or store in self.fixed or values[value].type != values[made].type:
            return False
        if self.nbytes[self.owner[store]] != self.nbytes[made]:
            return False  # a view of a part, or an expanded one
        if any(self.store[other] == store for other in op.reads if other != value) or _count(op, value) > 1:
            return False
        return self.held[store] == sum(self.store[v] == store for v in free)

    def finish(self, end: int) -> list[Allocation]:
        nbytes, graph = self.nbytes, self.graph
        return [
            Allocation(v, nbytes[v] or graph.nbytes(v), b, d if d >= 0 else end)
            for v, b, d in zip(self.owner, self.birth, self.death, strict=True)
        ]


def _count(op: Op, value: int) -> int:
    return sum(isinstance(a, Ref) and a.value == value for a in op.args)
