"""A graph as strategies see it: storages instead of values, no views, lists of readers.

A *storage* is named by the value that owns it (`Graph.root`). Only storages that an operation of the step produces
count; parameters, buffers, inputs, constants and tangents do not. *Forward storages* are produced in the forward.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from remate_runtime.flat_step import DEVICE, Graph, Op, Ref
from remate_runtime.link import (
    ResidentBytes,
    copied,
    freed_by_owner,
    gathered,
    generator_state,
    last_touches,
    link,
    memory_of_workspace,
    resident_by_call,
)

from .arrays import StepArrays


class Problem:
    """A graph at storage level. All bytes are those of the device's memory.

    Attributes:
        graph: The costed graph.
        once: Forward operations that may not run again.
        end: The operation that is last in any order, if any.
        tangents: For each gradient that backward starts from, its bytes and the last operation that reads it.
        lasting_tangents: Bytes of tangents that last to the end.
        backward_start: Index of the first backward operation.
        real: By operation, whether it is executed (views are not).
        reads: By operation, storages that it reads; empty for views.
        writes: By operation, storages that it writes; empty for views.
        size: Bytes by storage; 0 for sources and for values that own no storage.
        producer: By storage, the operation that computes it, or -1.
        readers: By storage, executed operations that read it, ascending.
        returned: Outputs of the model.
        gradients: Storages of gradients.
        pinned: Outputs and gradients, which are live from production to the end of the step.
        until_backward_start: Storages that must live to the end of the forward (new values of buffers).
        time: ns by operation.
        workspace: Bytes by operation.
        may_overwrite: By operation, storages that it may overwrite if they are freed there.
        overwrites: By operation, the storage that is freed there unless the plan keeps it, or -1. Its memory then
            counts once.
        state: By operation, bytes of the generator's state that its recomputations replay.
        copies: By buffer that the step updates, bytes of its old contents.
        reads_of_buffers: By operation, buffers of `copies` that it reads.
        deliveries: For gradients that are delivered together, the operation after which that happens, unless a
            recomputation delays it.
        delivery: By storage of a gradient that is freed when delivered, its delivery.
        gradient_copies: (delivery, bytes, whether it stays) of each copy that an owner gets.
        delays: By forward operation, deliveries that it delays when it runs again, because it reads their parameters.
    """

    def __init__(self, graph: Graph, once: Collection[int] = (), end: int | None = None) -> None:
        self.graph, self.once, self.end = graph, frozenset(once), end
        self.backward_start = graph.backward_start
        root, values = graph.root, graph.values
        count = len(values)
        self.real = [not op.view for op in graph.operations]
        self.time = [op.ns for op in graph.operations]
        self.workspace = [op.workspace * (memory_of_workspace(graph, op) == DEVICE) for op in graph.operations]
        self.state = [self._state(op) for op in graph.operations]
        self.size = [0] * count
        self.producer = [-1] * count
        self.readers: list[list[int]] = [[] for _ in range(count)]
        self.reads: list[tuple[int, ...]] = []
        self.writes: list[tuple[int, ...]] = []
        for index, op in enumerate(graph.operations):
            if op.view:
                self.reads.append(())
                self.writes.append(())
                continue
            self.reads.append(tuple(dict.fromkeys(root[v] for v in op.reads if values[root[v]].kind == "op")))
            written = tuple(v for v in op.writes if v is not None and root[v] == v)
            self.writes.append(written)
            for s in written:
                self.size[s] = graph.nbytes(s) if graph.memory(s) == DEVICE else 0
                self.producer[s] = index
            for s in self.reads[-1]:
                self.readers[s].append(index)
        self.tangents = self._tangents()
        self.returned = frozenset(root[v] for v in graph.outputs if values[root[v]].kind == "op")
        self.gradients = frozenset(root[v] for _, v in graph.gradients if values[root[v]].kind == "op")
        self.pinned = self.returned | self.gradients
        self.until_backward_start = frozenset(root[v] for _, v in graph.updates if values[root[v]].kind == "op")
        self.read_at_backward_start = sorted(self.returned | self.until_backward_start)
        self.copies = {root[b]: graph.nbytes(b) for b, _ in graph.updates if graph.memory(b) == DEVICE}
        self.reads_of_buffers = [
            tuple(dict.fromkeys(root[v] for v in op.reads if root[v] in self.copies)) if not op.view else ()
            for op in graph.operations
        ]
        self._delivered()
        self.may_overwrite = [self._candidates(index) for index in range(len(graph.operations))]
        self.overwrites = [
            next((s for s in candidates if self._may_die(s, i)), -1) for i, candidates in enumerate(self.may_overwrite)
        ]

    def _state(self, op: Op) -> int:
        nbytes, memory = generator_state(self.graph, op)
        return nbytes if op.random and memory == DEVICE else 0

    def _tangents(self) -> list[tuple[int, int]]:
        graph, root, last = self.graph, self.graph.root, dict[int, int]()
        for index, op in enumerate(graph.operations):
            if not op.view:
                last.update((root[v], index) for v in op.reads)
        end = len(graph.operations) - 1
        gradients = {root[v] for _, v in graph.gradients}
        last.update(dict.fromkeys(gradients, end))
        tangents = [i for i, v in enumerate(graph.values) if v.kind == "tangent" and graph.memory(i) == DEVICE]
        lasting = (i for i in tangents if graph.held_by_caller(i) or i not in last or i in gradients)
        self.lasting_tangents = sum(map(graph.nbytes, lasting))
        return [(graph.nbytes(i), end if graph.held_by_caller(i) else last.get(i, end)) for i in tangents]

    def _delivered(self) -> None:
        graph, root, gone = self.graph, self.graph.root, frozenset[int]()
        if graph.delivered != "retained":
            gone = freed_by_owner(graph)
        copies = {n: nbytes for n, nbytes in copied(graph).items() if graph.memory(graph.gradients[n][1]) == DEVICE}
        self.deliveries: list[int] = []
        self.delivery: dict[int, int] = {}
        self.gradient_copies: list[tuple[int, int, bool]] = []
        owned: dict[int, set[int]] = {}  # by parameter
        for delivery in gathered(graph, last_touches(graph)) if gone or copies else ():
            for number in delivery.gradients:
                source, value = graph.gradients[number]
                owned.setdefault(root[source], set()).add(len(self.deliveries))
                if root[value] in gone:
                    self.delivery[root[value]] = len(self.deliveries)
                if number in copies:
                    stays = graph.delivered == "retained" or graph.values[source].kind != "parameter"
                    self.gradient_copies.append((len(self.deliveries), copies[number], stays))
            self.deliveries.append(delivery.after)
        self.delays = [
            () if op.view else tuple(sorted({n for v in op.reads for n in owned.get(root[v], ())}))
            for op in graph.operations[: graph.backward_start]
        ]

    def _candidates(self, index: int) -> tuple[int, ...]:
        """Return storages that an operation could overwrite if they were freed there, in the linker's order."""
        op = self.graph.operations[index]
        arguments = () if op.view else (op.args[position] for position in self.graph.overwritable[index])
        return tuple(self.graph.root[a.value] for a in arguments if isinstance(a, Ref))

    def _may_die(self, s: int, index: int) -> bool:
        """Return whether nothing reads s after `index`, or, for a forward operation, only backward does."""
        if s in self.pinned or s in self.until_backward_start:
            return False
        return not any(index < i and (i < self.backward_start or index >= self.backward_start) for i in self.readers[s])

    def held_until(self, s: int) -> int:
        """Return the operation after which a gradient of backward is freed, if recomputations do not delay it."""
        return self.deliveries[self.delivery[s]] if s in self.delivery else len(self.real) - 1

    @cached_property
    def held(self) -> ResidentBytes:
        """Return the bytes that one call of a part leaves in memory without recomputation."""
        return resident_by_call(link(self.graph))

    @cached_property
    def arrays(self) -> StepArrays:
        """Return the same data for local search."""
        return StepArrays(self)

    @cached_property
    def forward(self) -> list[int]:
        """Return executed operations of the forward."""
        return [i for i in range(self.backward_start) if self.real[i]]

    @cached_property
    def backward(self) -> list[int]:
        """Return executed operations of the backward."""
        return [i for i in range(self.backward_start, len(self.real)) if self.real[i]]

    @cached_property
    def storages(self) -> list[int]:
        """Return forward storages, in order of production."""
        return [s for i in self.forward for s in self.writes[i]]

    @cached_property
    def baseline_time(self) -> int:
        """Return ns of all operations, each once."""
        return sum(t for t, real in zip(self.time, self.real, strict=True) if real)

    def last_forward_read(self, s: int) -> int:
        """Return the last forward position at which s is live in any plan."""
        inside = [i for i in self.readers[s] if i < self.backward_start]
        last = inside[-1] if inside else self.producer[s]
        return max(last, self.backward_start - 1) if s in self.until_backward_start else last
