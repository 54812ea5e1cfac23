"""Windows to split: loss heads, with the operations around them that read or produce something as large.

A window is grown from its seed, the loss, one operation at a time. An operation joins if the linker can split the
window with it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import FlatSplit, Graph, row_count, split_step
from remate_runtime.operators import ROWS

from ..partition.canonical import readers_of
from ..partition.hierarchy import Hierarchy
from ..partition.leaf_graph import LeafGraph, leaf_graph

HEAD = "head"
_SHARE = 0.35  # of the bytes of the seed's largest value: a value with fewer does not make an operation join
_MOST = 64  # operations of a window


class Window(msgspec.Struct, frozen=True):
    """Operations that are split together.

    Attributes:
        leaf: Id of the block that they belong to.
        operations: Their indices in the step, ascending.
        rows: Number of rows.
        seed: The operation that the window was grown from.
    """

    leaf: str
    operations: tuple[int, ...]
    rows: int
    seed: int


def head_windows(step: Hierarchy) -> tuple[Window, ...]:
    """Return a window for every loss head that can be split, in step order."""
    graph = step.captured.graph
    readers = readers_of(graph)
    windows: list[Window] = []
    for part in step.leaves():
        seeds = [i for i in range(*part.forward) if _is_loss(graph, i)]
        if not seeds:
            continue
        leaf = leaf_graph(graph, part, readers)
        for seed in seeds:
            taken = {i for window in windows for i in window.operations}
            window = _grown(leaf, leaf.operations.index(seed), taken)
            if window is not None:
                operations = tuple(leaf.operations[i] for i in window)
                windows.append(Window(part.id, operations, row_count(leaf.graph, window), seed))
    return tuple(windows)


def _is_loss(graph: Graph, i: int) -> bool:
    rule = ROWS.operators.get(graph.operations[i].op)
    return rule is not None and rule.rule == "loss"


def _grown(leaf: LeafGraph, seed: int, taken: Collection[int]) -> tuple[int, ...] | None:
    """Return the operations of a window around a seed, by their indices in the leaf; None if it cannot be split."""
    graph = leaf.graph
    pool = [i for i in _pool(graph, seed) if leaf.operations[i] not in taken]
    members = _start(graph, pool, seed)
    while members is not None and len(members) < _MOST:
        near = sorted(set(pool).difference(members), key=lambda i: (abs(i - seed), i))
        joined = next((i for i in near if _splits(graph, (*members, i))), None)
        if joined is None:
            break
        members = (*members, joined)
    return None if members is None else tuple(sorted(members))


def _start(graph: Graph, pool: Sequence[int], seed: int) -> tuple[int, ...] | None:
    """Return the seed with as few operations before it as it takes to have rows."""
    members, before = (seed,), [i for i in pool if i < seed]
    while not _splits(graph, members):
        if not before:
            return None
        members = (before.pop(), *members)
    return members


def _splits(graph: Graph, members: Sequence[int]) -> bool:
    """Return whether the linker can split these operations."""
    try:
        split_step(graph, FlatSplit(tuple(sorted(members)), 2))
    except ScheduleError:
        return False
    return True


def _pool(graph: Graph, seed: int) -> list[int]:
    """Return the operations with a rule for rows that are connected to the seed by large values."""
    touching: dict[int, set[int]] = {}
    for i, op in enumerate(graph.operations):
        for owner in {graph.root[v] for v in (*op.reads, *op.writes) if v is not None}:
            touching.setdefault(owner, set()).add(i)
    least = _SHARE * max(graph.nbytes(v) for v in graph.operations[seed].reads)
    pool, queue = set[int](), [seed]
    while queue:
        i = queue.pop()
        op = graph.operations[i]
        if i in pool or (not op.view and (op.op not in ROWS.operators or op.random)):
            continue
        pool.add(i)
        for owner in {graph.root[v] for v in (*op.reads, *op.writes) if v is not None}:
            if graph.nbytes(owner) >= least and graph.values[owner].kind != "parameter":
                queue += touching[owner]
    return sorted(i for i in pool if not graph.operations[i].view)
