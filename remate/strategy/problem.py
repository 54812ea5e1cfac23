"""What every strategy sees of a graph, derived once: storages instead of values, views gone, lists of readers.

A *storage* is named by the value that owns it (`Graph.root`). Only storages that an operation of the step makes count;
parameters, buffers, inputs, constants and tangents are there anyway. *Forward storages* are made in the forward.
"""

from __future__ import annotations

from functools import cached_property

from remate_runtime.operators import IN_PLACE
from remate_runtime.step import Graph, Op, Ref


class Problem:
    """A graph at storage level.

    graph: the costed graph. tangents: of each gradient that backward starts from, its bytes and the last operation that
    reads it. turn: index of the first backward operation. real[i]: operation i is executed, that is, no view. reads[i],
    writes[i]: storages that operation i reads and makes (empty for views). size[s]: bytes (0 for sources and for values
    that own no storage). producer[s]: operation that makes s, or -1. readers[s]: executed operations that read s,
    ascending. pinned: storages alive from production to the end of the step: outputs (returned) and gradients.
    until_turn: storages that must live to the end of the forward (new values of buffers). time[i] in ns, workspace[i]
    in bytes. may_overwrite[i]: storages that operation i may write over where they die. overwrites[i]: the one that
    does die there unless the plan keeps it, or -1: memory then counts once.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.backward_start = graph.backward_start
        root, values = graph.root, graph.values
        count = len(values)
        self.real = [not op.view for op in graph.operations]
        self.time = [op.ns for op in graph.operations]
        self.workspace = [op.workspace for op in graph.operations]
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
            made = tuple(v for v in op.writes if v is not None and root[v] == v)
            self.writes.append(made)
            for s in made:
                self.size[s] = graph.nbytes(s)
                self.producer[s] = index
            for s in self.reads[-1]:
                self.readers[s].append(index)
        self.tangents = self._tangents()
        self.returned = frozenset(root[v] for v in graph.outputs if values[root[v]].kind == "op")
        self.gradients = frozenset(root[v] for _, v in graph.gradients if values[root[v]].kind == "op")
        self.pinned = self.returned | self.gradients
        self.until_turn = frozenset(root[v] for _, v in graph.updates if values[root[v]].kind == "op")
        self.may_overwrite = [() if op.view else self._candidates(op) for op in graph.operations]
        self.overwrites = [
            next((s for s in candidates if self._may_die(s, i)), -1) for i, candidates in enumerate(self.may_overwrite)
        ]

    def _tangents(self) -> list[tuple[int, int]]:
        graph, last = self.graph, {}
        for index, op in enumerate(graph.operations):
            if not op.view:
                last.update((graph.root[v], index) for v in op.reads)
        end = len(graph.operations) - 1
        return [(graph.nbytes(i), last.get(i, end)) for i, v in enumerate(graph.values) if v.kind == "tangent"]

    def _candidates(self, op: Op) -> tuple[int, ...]:
        """Storages that `op` could write over if they died there, in the linker's order."""
        if op.op not in IN_PLACE or op.multiple or len(op.writes) != 1 or op.writes[0] is None:
            return ()
        root, values, made = self.graph.root, self.graph.values, op.writes[0]
        found: list[int] = []
        for position in IN_PLACE[op.op][1]:
            argument = op.args[position] if position < len(op.args) else None
            if not isinstance(argument, Ref) or values[argument.value].type != values[made].type:
                continue
            s = root[argument.value]
            alone = sum(root[v] == s for v in op.reads) == 1 and sum(a == argument for a in op.args) == 1
            swappable = position == 0 or (isinstance(op.args[0], Ref) and not op.kwargs and len(op.args) == 2)
            if alone and swappable and self.producer[s] >= 0 and self.size[s] == self.graph.nbytes(made):
                found.append(s)
        return tuple(found)

    def _may_die(self, s: int, index: int) -> bool:
        """Whether nothing reads s after `index`, or, for a forward operation, only backward does."""
        if s in self.pinned or s in self.until_turn:
            return False
        return not any(index < i and (i < self.backward_start or index >= self.backward_start) for i in self.readers[s])

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
        return max(last, self.backward_start - 1) if s in self.until_turn else last

    def backward_reads(self, s: int) -> list[int]:
        return [i for i in self.readers[s] if i >= self.backward_start]
