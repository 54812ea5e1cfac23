"""The storage of each slot, event by event: birth and death of storages, and the choice of in-place runs."""

from __future__ import annotations

from msgspec.structs import replace

from ..flat_step.graph import Graph, Op, Ref
from ..format.vocabulary import PageMemory
from ..operators.tables import DEVICES
from .events import PAGED_TO, Allocation, PageBack, PageOut


class Storages:
    """Storages and the slots that hold them. Storage -1 is one that the step does not own, such as a parameter."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.store: list[int] = [-1] * len(graph.values)
        self.held: list[int] = []  # by storage: number of slots and callers that hold it
        self.owner: list[int] = []  # by storage: the value that it was allocated for
        self.birth: list[int] = []
        self.death: list[int] = []
        self.fixed: set[int] = set()  # storages that other code may read; never written over
        self.states: dict[int, int] = {}  # by recomputed random operation: where its state was saved
        self.extra: list[Allocation] = []  # generator states
        self.copies: list[Allocation] = []  # copies of gradients
        self.away: list[Allocation] = []  # copies of paged values in other memories
        self.delivered: dict[int, int] = {}  # by storage of a gradient: position of its delivery

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

    def view(self, op: Op) -> None:
        store = self.store[op.reads[0]]
        for value in op.writes:
            if value is not None:
                self.hold(value, store)

    def make(self, op: Op, at: int, overwrites: int | None) -> None:
        for value in op.writes:
            if value is not None:
                argument = None if overwrites is None else op.args[overwrites]
                store = self.store[argument.value] if isinstance(argument, Ref) else self.new(value, at)
                self.hold(value, store)

    def drop(self, value: int, at: int) -> None:
        store = self.store[value]
        self.store[value] = -1
        if store >= 0:
            self.held[store] -= 1
            if self.held[store] == 0:
                self.death[store] = at

    def preserve(self, buffer: int, at: int) -> None:
        """Give a value's slot a storage of its own, which nothing writes over."""
        store = self.new(buffer, at)
        self.fixed.add(store)
        self.hold(buffer, store)

    def hand_out(self) -> None:
        """Pass the outputs to the caller, who keeps them."""
        for value in self.graph.outputs:
            store = self.store[value]
            if store >= 0:
                self.held[store] += 1
                self.fixed.add(store)

    def receive(self, at: int) -> None:
        """Receive tangents. The caller may hold one of them to the end."""
        for value, about in enumerate(self.graph.values):
            if about.kind == "tangent":
                self.preserve(value, at)
                if self.graph.held_by_caller(value):
                    self.held[self.store[value]] += 1

    def deliver(self, value: int, at: int) -> None:
        """Deliver a gradient to its owner, who may free it."""
        self.delivered[self.store[value]] = at

    def hand_over(self, value: int, to: PageMemory, at: int) -> None:
        """Deliver a gradient in another memory, to which it has been copied before the event at `at`."""
        self.away.append(Allocation(value, self.graph.nbytes(value), at - 1, -1, PAGED_TO[to]))
        self.death[self.store[value]] = at + 1

    def copy(self, value: int, nbytes: int, at: int, goes: bool) -> None:
        """Deliver a copy of a gradient. goes: the owner may free it."""
        memory = self.graph.memory(value)
        self.copies.append(Allocation(value, nbytes, at, at + 1, memory, at if goes else None, copied=True))

    def save_state(self, op: int, at: int) -> None:
        self.states[op] = at

    def replay(self, op: int, at: int, last: bool) -> None:
        """Replay a saved state. The current state of the generator is kept meanwhile."""
        nbytes, memory = generator_state(self.graph, self.graph.operations[op])
        self.extra.append(Allocation(None, nbytes, at, at + 1, memory))
        if last:
            self.extra.append(Allocation(None, nbytes, self.states[op], at + 1, memory))

    def overwritten(self, index: int, free: list[int]) -> int | None:
        """Return the position of the argument that an operation writes over: the first one whose storage dies there.

        Args:
            index: The operation.
            free: Slots that are emptied after it.
        """
        args = self.graph.operations[index].args
        for position in self.graph.overwritable[index]:
            argument = args[position]
            store = self.store[argument.value] if isinstance(argument, Ref) else -1
            if store not in self.fixed and self.held[store] == sum(self.store[v] == store for v in free):
                return position
        return None

    def page(self, kind: type, value: int, to: PageMemory, at: int) -> None:
        """Page a storage out or back. Its copy in the other memory stays to the end of the step."""
        if kind is PageOut:
            self.away.append(Allocation(value, self.graph.nbytes(value), at, -1, PAGED_TO[to]))
        elif kind is PageBack:
            self.hold(value, self.new(value, at))

    def finish(self, end: int) -> tuple[Allocation, ...]:
        """Return all storages, those of values first. end: number of events."""
        nbytes, graph = self.graph.storage_bytes, self.graph
        death = [end if at < 0 else at for at in self.death]
        if graph.delivered != "retained":
            for store, at in self.delivered.items():
                death[store] = at + 1
        storages = [
            Allocation(
                v,
                nbytes[v],
                self.birth[at],
                death[at],
                graph.memory(v),
                self.delivered.get(at),
            )
            for at, v in enumerate(self.owner)
        ]
        held = graph.delivered == "retained"
        copies = (
            replace(allocation, death=end) if held or allocation.delivered is None else allocation
            for allocation in self.copies
        )
        return (*storages, *self.extra, *copies, *(replace(allocation, death=end) for allocation in self.away))


def generator_state(graph: Graph, op: Op) -> tuple[int, str]:
    """Return the bytes and the memory of the generator's state that recomputations of a random operation replay."""
    on_host = all(graph.values[v].type.cpu for v in op.writes if v is not None)
    return DEVICES["cpu" if on_host else graph.device].generator_state, graph.host
