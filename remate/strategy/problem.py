"""What every strategy sees of a graph, derived once: storages instead of values, views gone, lists of readers.

A *storage* is named by the value that owns it (`Graph.root`). Only storages that an operation of the step makes count;
parameters, buffers, inputs, constants and tangents are there anyway. *Forward storages* are made in the forward.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from remate_runtime.flat_step import DEVICE, Graph, Op, Ref, overwritable
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
    """A graph at storage level.

    graph: the costed graph. once: forward operations that may not run again. end: the operation that stays last in any
    order, if there is one. tangents: of each gradient that backward starts from, its bytes and the last operation that
    reads it; lasting_tangents: bytes of those that last to the end. backward_start: index of the first backward
    operation. real[i]: operation i is executed, that is, no view. reads[i], writes[i]: storages that operation i reads
    and writes (empty for views). size[s]: bytes (0 for sources and for values that own no storage). producer[s]:
    operation that computes s, or -1. readers[s]: executed operations that read s, ascending. pinned: storages alive
    from production to the end of the step: outputs (returned) and gradients. until_backward_start: storages that must
    live to the end of the forward (new values of buffers). time[i] in ns, workspace[i] in bytes. may_overwrite[i]:
    storages that operation i may overwrite if they are freed there. overwrites[i]: the storage that is freed there
    unless the plan keeps it, or -1: its memory then counts once. state[i]: bytes of the generator's state that
    recomputations of operation i replay. copies: by buffer that the step updates, bytes of its old contents;
    reads_of_buffers[i]: those of them that operation i reads. deliveries: for gradients that are delivered together and
    freed then, the operation after which that happens, unless a recomputation delays it; delivery: by storage of such a
    gradient, its delivery. gradient_copies: (delivery, bytes, whether it stays) of each copy that an owner gets.
    delays[i]: deliveries that operation i delays when it runs again, because it reads their parameters. All bytes are
    those of the device's memory.
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
        self.may_overwrite = [() if op.view else self._candidates(op) for op in graph.operations]
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
            self.deliveries.append(delivery.behind)
        self.delays = [
            () if op.view else tuple(sorted({n for v in op.reads for n in owned.get(root[v], ())}))
            for op in graph.operations[: graph.backward_start]
        ]

    def _candidates(self, op: Op) -> tuple[int, ...]:
        """Storages that `op` could write over if they died there, in the linker's order."""
        arguments = (op.args[position] for position in overwritable(self.graph, op))
        return tuple(self.graph.root[a.value] for a in arguments if isinstance(a, Ref))

    def _may_die(self, s: int, index: int) -> bool:
        """Whether nothing reads s after `index`, or, for a forward operation, only backward does."""
        if s in self.pinned or s in self.until_backward_start:
            return False
        return not any(index < i and (i < self.backward_start or index >= self.backward_start) for i in self.readers[s])

    def held_until(self, s: int) -> int:
        """The operation behind which a gradient made in backward goes, if recomputations do not delay it."""
        return self.deliveries[self.delivery[s]] if s in self.delivery else len(self.real) - 1

    @cached_property
    def held(self) -> ResidentBytes:
        """What one call of a part leaves behind without recomputation."""
        return resident_by_call(link(self.graph))

    @cached_property
    def arrays(self) -> StepArrays:
        """The same for local search."""
        return StepArrays(self)

    @cached_property
    def forward(self) -> list[int]:
        """Forward operations that may run again."""
        return [i for i in range(self.backward_start) if self.real[i]]

    @cached_property
    def backward(self) -> list[int]:
        return [i for i in range(self.backward_start, len(self.real)) if self.real[i]]

    @cached_property
    def storages(self) -> list[int]:
        """Forward storages, in order of production."""
        return [s for i in self.forward for s in self.writes[i]]

    @cached_property
    def baseline_time(self) -> int:
        return sum(t for t, real in zip(self.time, self.real, strict=True) if real)

    def last_forward_read(self, s: int) -> int:
        """Last forward position at which s is live whatever is retained."""
        inside = [i for i in self.readers[s] if i < self.backward_start]
        last = inside[-1] if inside else self.producer[s]
        return max(last, self.backward_start - 1) if s in self.until_backward_start else last

    def backward_reads(self, s: int) -> list[int]:
        return [i for i in self.readers[s] if i >= self.backward_start]
