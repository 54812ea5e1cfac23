"""Adds recomputations that cost nothing once they are fused.

Elementwise operations are recomputed in the segment of backward that reads their results, from tensors that are kept
anyway. So forward does not write the results, and backward does not read them.

A minimum cut, as in torch.compile's partitioner, selects the tensors to keep: it separates those that must be kept
(results and arguments of matrix products, convolutions and the like) from those that backward reads. The cost is bytes;
of equal cuts, the one with the fewest recomputations wins.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from ...flat_step.graph import FlatRecompute, Op
from ...link.contract import keeps_contract
from ...link.events import Linked, RecomputeRun, Run
from ...link.linker import link
from ...link.simulator import simulate
from ..compiled_step import LinkedStep
from .exact import exact
from .segments import compiles

# Operators that Inductor fuses with preceding elementwise operations, because they read each element once or twice.
_FUSING = frozenset(
    (
        *(
            "sum",
            "mean",
            "amax",
            "amin",
            "var_mean",
            "clone",
            "_to_copy",
            "copy",
            "cat",
            "constant_pad_nd",
            "slice_backward",
        ),
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        *("native_batch_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "native_dropout_backward"),
    )
)
_WRITTEN = 17, 16  # weight of a byte that forward writes only for backward, and of one that it writes anyway


def with_fused_recomputes(step: LinkedStep) -> LinkedStep:
    """Return the step with additional recomputations. It keeps the budget even if nothing of it compiles."""
    most = max(step.budget, simulate(step.linked).peak)
    barred: set[int] = set(exact(step.linked))
    while True:
        added = fused_recomputes(step, barred)
        if not added:
            return step
        recomputes = sorted([*planned_recomputes(step.linked), *added], key=lambda each: (each.before, each.op))
        linked = link(step.linked.graph, recomputes)
        # Operations whose choices depend on rounding must not be recomputed in a different fusion.
        choosing = exact(linked) & {recompute.op for recompute in added}
        if not choosing:
            keeps = keeps_contract(step.linked, linked) and simulate(linked).peak <= most
            return step._replace(linked=linked) if keeps else step
        barred |= choosing


def planned_recomputes(linked: Linked) -> list[FlatRecompute]:
    """Return the recomputations that the step was linked with, in an order that gives the same step."""
    recomputes: list[FlatRecompute] = []
    before = len(linked.graph.operations)
    for event in reversed(linked.events):
        if isinstance(event, Run):
            before = event.op
        elif isinstance(event, RecomputeRun):
            recomputes.append(FlatRecompute(event.op, before))
    return recomputes[::-1]


class _StorageRead(NamedTuple):
    """A computation of backward that reads the contents of a storage from forward.

    Attributes:
        before: The operation, or the one that follows a recomputation.
        part: Number of the block's backward, or of the stretch between two blocks, that contains it.
        leaf: That block.
        fuses: It needs no tensor in memory.
    """

    before: int
    part: int
    leaf: int
    fuses: bool


def fused_recomputes(step: LinkedStep, barred: Collection[int] = ()) -> list[FlatRecompute]:
    """Return the recomputations to add. barred: operations that must not be recomputed for this."""
    choice = _Choice(step, barred)
    kept = choice.kept()
    places: dict[
        int, dict[int, int]
    ] = {}  # by operation and part: the first point at which it must have been recomputed
    for owner, storage_reads in choice.reads.items():
        for op in choice.again(owner, kept):
            at = places.setdefault(op, {})
            for read in storage_reads:
                at[read.part] = min(at.get(read.part, read.before), read.before)
    recomputes = [FlatRecompute(op, before) for op, parts in places.items() for before in parts.values()]
    return sorted(recomputes, key=lambda recompute: (recompute.before, recompute.op))


class _Choice:
    """Chooses between keeping a tensor for backward and recomputing it in the backward of its own block."""

    def __init__(self, step: LinkedStep, barred: Collection[int]) -> None:
        self._step, self._graph = step, step.linked.graph
        graph = self._graph
        self.reads = self._read_in_backward()
        self._ahead: dict[int, list[int]] = {}  # by owner: the operations of forward that read it
        for at, op in enumerate(graph.operations[: graph.backward_start]):
            for owner in () if op.view else {graph.root[value] for value in op.reads}:
                self._ahead.setdefault(owner, []).append(at)
        self._outputs = {graph.root[value] for value in graph.outputs}
        self._updated = {graph.root[value] for pair in graph.updates for value in pair}
        self._cheap = {at for at in range(graph.backward_start) if at not in barred and self._is_cheap(at)}

    def again(self, owner: int, kept: Collection[int]) -> list[int]:
        """Return the operations to recompute for this storage, if only the storages of `kept` are in memory."""
        operations: list[int] = []
        row = [owner]
        while row:
            owner = row.pop()
            producer = self._graph.values[owner].producer
            if owner not in kept and producer in self._cheap and producer not in operations:
                operations.append(producer)
                row += [self._graph.root[value] for value in self._graph.operations[producer].reads]
        return operations

    def kept(self) -> set[int]:
        """Return the minimum cut: owners of the storages to keep from forward to backward."""
        import networkx

        networks: Any = networkx  # it declares no types
        graph, net = self._graph, networks.DiGraph()
        net.add_nodes_from(("from", "to"))
        ahead = [op for op in graph.operations[: graph.backward_start] if not op.view]
        storages = [value for op in ahead for value in op.writes if value is not None]
        for owner in storages:
            weight = _WRITTEN[self._is_written(owner)] * graph.nbytes(owner)
            net.add_edge((owner, "in"), (owner, "out"), capacity=weight)
            if owner in self.reads:
                net.add_edge((owner, "out"), "to")
            producer = graph.values[owner].producer
            if producer not in self._cheap:
                net.add_edge("from", (owner, "in"))
                continue
            for source in {graph.root[value] for value in graph.operations[producer].reads}:
                if graph.values[source].producer >= 0:
                    net.add_edge((source, "out"), (owner, "in"))
        reach = _reaching(networks.algorithms.flow.dinitz(net, "from", "to"))
        return {owner for owner in storages if (owner, "out") in reach and (owner, "in") not in reach}

    def _read_in_backward(self) -> dict[int, list[_StorageRead]]:
        """Return the reads in backward of storages from forward, by owner."""
        linked, graph = self._step.linked, self._graph
        reads, remade = dict[int, list[_StorageRead]](), set[int]()
        events = [event for event in linked.backward if isinstance(event, Run | RecomputeRun)]
        places: list[tuple[int, int, int]] = []
        before, leaf, part = len(graph.operations), -1, 0
        for event in reversed(events):
            if isinstance(event, Run):
                now = self._leaf(event.op)
                before, leaf, part = event.op, now, part + (now != leaf)
            places.append((before, part, leaf))
        for event, (before, part, leaf) in zip(events, reversed(places), strict=True):
            op = graph.operations[event.op]
            fuses = self._fuses(op)
            for owner in dict.fromkeys(graph.root[value] for value in op.reads):
                if owner not in remade:
                    reads.setdefault(owner, []).append(_StorageRead(before, part, leaf, fuses))
            remade.update(value for value in op.writes if value is not None)
        for _, gradient in graph.gradients:  # gradients are stored
            reads.setdefault(graph.root[gradient], []).append(_StorageRead(len(graph.operations) - 1, -1, -1, False))
        return reads

    def _leaf(self, op: int) -> int:
        return self._step.leaves.get(self._graph.operations[op].id, -1)

    def _is_pointwise(self, op: Op) -> bool:
        return torch.Tag.pointwise in self._step.operators[op.op].tags

    def _fuses(self, op: Op) -> bool:
        """Return whether Inductor fuses the operation with elementwise ones."""
        return (self._is_pointwise(op) or op.op.split(".")[1] in _FUSING) and compiles(self._graph, op)

    def _is_written(self, owner: int) -> bool:
        """Return whether forward stores the tensor in any case."""
        graph = self._graph
        ends = (graph.values[owner].producer, *self._ahead.get(owner, ()))
        return owner in self._outputs or any(not self._is_pointwise(graph.operations[at]) for at in ends)

    def _is_cheap(self, at: int) -> bool:
        """Return whether an operation of forward may be recomputed where its result is read.

        All its reads are in its own block; otherwise the backward of one block would read tensors of many others. It
        reads only those tensors of the caller that backward reads anyway, because only these are checked for writes.
        """
        graph = self._graph
        op, leaf = graph.operations[at], self._leaf(at)
        if op.view or len(op.writes) != 1 or not self._is_pointwise(op) or not compiles(graph, op):
            return False
        owners, result = {graph.root[value] for value in op.reads}, graph.root[op.writes[0] or 0]
        if not owners or not self._updated.isdisjoint({*owners, result}) or result in self._outputs:
            return False
        if any(self._leaf(reader) != leaf for reader in self._ahead.get(result, ())):
            return False
        if any(read.leaf != leaf or not read.fuses for read in self.reads.get(result, ())):
            return False
        given = {
            argument
            for argument in owners
            if graph.values[argument].producer < 0 and graph.values[argument].kind != "constant"
        }
        return all(owner in self.reads for owner in given | (owners & self._outputs))


def _reaching(residual: Any) -> set[Any]:
    """Return the nodes from which a path with remaining capacity leads to "to"."""
    reached, row = {"to"}, ["to"]
    infinite = residual.graph["inf"]
    while row:
        node = row.pop()
        for before in residual.pred[node]:
            edge = residual[before][node]
            if before not in reached and (edge["capacity"] >= infinite or edge["flow"] < edge["capacity"]):
                reached.add(before)
                row.append(before)
    return reached
