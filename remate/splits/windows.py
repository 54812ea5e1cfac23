"""Windows to split: loss heads, or operations that need much memory, each with the operations around it that read or
produce something as large.

A window is grown from its seed, one operation at a time. An operation joins if the linker can split the window with it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Final

import msgspec

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import FlatSplit, Graph, row_count, split_step, why_not_drawn
from remate_runtime.operators import ROWS

from ..partition.canonical import readers_of
from ..partition.hierarchy import Hierarchy
from ..partition.leaf_graph import LeafGraph, leaf_graph

HEAD: Final = "head"
ALL: Final = "all"
SPLITS = (HEAD, ALL)  # what may be permitted
_SHARE = 0.35  # of the bytes of the seed's largest value: a value with fewer does not make an operation join
_MOST = 64  # operations of a window


class Window(msgspec.Struct, frozen=True):
    """Operations that are split together.

    Attributes:
        leaf: Id of the block that they belong to.
        operations: Their indices in the step, ascending.
        rows: Number of rows.
        lines: Number of rows of its largest products: more if a row of the window is a whole sequence.
        seed: The operation that the window was grown from.
        need: The most bytes that one of the operations needs, with its arguments.
    """

    leaf: str
    operations: tuple[int, ...]
    rows: int
    lines: int
    seed: int
    need: int


class LossHeads(msgspec.Struct, frozen=True):
    """The loss heads of a step.

    Attributes:
        windows: Those that can be split, in step order.
        refusals: Why the others cannot be split.
    """

    windows: tuple[Window, ...]
    refusals: tuple[ScheduleError, ...]


def head_windows(step: Hierarchy) -> tuple[Window, ...]:
    """Return a window for every loss head that can be split, in step order."""
    return loss_heads(step).windows


def loss_heads(step: Hierarchy) -> LossHeads:
    """Return the windows of all loss heads of a step, and why others cannot be split."""
    graph = step.captured.graph
    readers = readers_of(graph)
    windows: list[Window] = []
    refusals: list[ScheduleError] = []
    for part in step.leaves():
        seeds = _seeds(graph, range(*part.forward))
        if not seeds:
            continue
        leaf = leaf_graph(graph, part, readers)
        for seed in seeds:
            taken = {i for window in windows for i in window.operations}
            if seed in taken:
                continue
            try:
                grown = _grown(leaf, leaf.operations.index(seed), taken)
            except ScheduleError as refusal:
                refusals.append(refusal)
                continue
            operations = tuple(leaf.operations[i] for i in grown)
            windows.append(_window(part.id, graph, operations, row_count(leaf.graph, grown), seed))
    return LossHeads(tuple(sorted(windows, key=lambda window: window.seed)), tuple(refusals))


def large_windows(step: Hierarchy, threshold: int) -> tuple[Window, ...]:
    """Return windows around the operations that need more bytes than a threshold, where they can be split.

    Equal leaves have equal windows.
    """
    graph = step.captured.graph
    readers = readers_of(graph)
    windows: list[Window] = []
    known: dict[Hashable, list[tuple[tuple[int, ...], int, int]]] = {}
    for part in step.leaves():
        span = (*range(*part.forward), *range(*part.backward))
        if all(need_of(graph, i) <= threshold for i in span):
            continue
        leaf = leaf_graph(graph, part, readers)
        key = _shape(leaf.graph)
        if key not in known:
            known[key] = list(_grown_from_all(leaf, graph, threshold))
        for members, rows, seed in known[key]:
            operations = tuple(leaf.operations[i] for i in members)
            windows.append(_window(part.id, graph, operations, rows, leaf.operations[seed]))
    return tuple(windows)


def need_of(graph: Graph, i: int) -> int:
    """Return the bytes that an operation needs with its arguments."""
    op = graph.operations[i]
    owners = {graph.root[v] for v in (*op.reads, *op.writes) if v is not None}
    return op.workspace + sum(graph.nbytes(v) for v in owners if graph.values[v].kind in ("op", "tangent"))


def _window(leaf: str, graph: Graph, operations: tuple[int, ...], rows: int, seed: int) -> Window:
    results = [graph.values[v].type.shape[0] for i in operations if (v := _product(graph, i)) is not None]
    need = max(need_of(graph, i) for i in operations)
    return Window(leaf, operations, rows, max(results, default=rows), seed, need)


def _product(graph: Graph, i: int) -> int | None:
    """Return the result of a product of forward."""
    op = graph.operations[i]
    return op.writes[0] if i < graph.backward_start and ROWS.operators[op.op].rule == "product" else None


def _grown_from_all(leaf: LeafGraph, graph: Graph, threshold: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield members, number of rows and seed of windows of a leaf, by their indices in it; the largest need first."""
    needs = {at: need_of(graph, i) for at, i in enumerate(leaf.operations) if not leaf.graph.operations[at].view}
    taken: set[int] = set()
    for seed in sorted((at for at, need in needs.items() if need > threshold), key=lambda at: (-needs[at], at)):
        if leaf.operations[seed] in taken:
            continue
        try:
            members = _grown(leaf, seed, taken)
        except ScheduleError:
            continue
        taken.update(leaf.operations[at] for at in members)
        yield members, row_count(leaf.graph, members), seed


def _shape(graph: Graph) -> Hashable:
    """Return what two leaves have in common if their windows are equal."""
    types = tuple((value.type, value.kind) for value in graph.values)
    return tuple((op.op, op.reads, op.writes, op.random) for op in graph.operations), types, graph.backward_start


def _seeds(graph: Graph, span: range) -> list[int]:
    """Return the losses of a leaf, those of many elements at once last, as other windows may contain them."""
    kinds: list[list[int]] = [[], [], []]
    for i in span:
        op = graph.operations[i]
        rule = ROWS.operators.get(op.op)
        if rule is None:
            continue
        if rule.rule == "loss":
            kinds[0].append(i)
        elif op.op in ("aten._log_softmax", "aten.logsumexp"):
            kinds[1].append(i)
        elif rule.reduces is not None:
            kinds[2].append(i)
    return [i for kind in kinds for i in kind]


def _grown(leaf: LeafGraph, seed: int, taken: Collection[int]) -> tuple[int, ...]:
    """Return the operations of a window around a seed, by their indices in the leaf.

    A window with fewer, larger rows is taken if the other one leaves out an operation that needs much.

    Raises:
        ScheduleError: The seed cannot be split.
    """
    graph = leaf.graph
    pool = [i for i in _pool(graph, seed) if leaf.operations[i] not in taken]
    rows = _row_count(graph, pool) if len(pool) <= _MOST else 0
    members = _start(graph, pool, seed)
    if rows >= _row_count(graph, members):
        return tuple(pool)
    members = _joined(graph, members, pool, seed)
    much = _SHARE * need_of(graph, seed)
    return tuple(pool) if rows and any(need_of(graph, i) > much for i in set(pool).difference(members)) else members


def _joined(graph: Graph, members: tuple[int, ...], pool: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return a window with all operations of a pool that can join it without a loss of rows."""
    rows = _row_count(graph, members)
    for way in (_alone, _with_between):  # an operation may join only together with those between it and the window
        before = None
        while before != members and len(members) < _MOST:
            before = members
            for i in sorted(set(pool).difference(members), key=lambda i: (abs(i - seed), i)):
                larger = way(graph, members, pool, i)
                if i not in members and len(larger) <= _MOST and _row_count(graph, larger) >= rows:
                    members = larger
    return tuple(sorted(members))


def _alone(graph: Graph, members: Sequence[int], pool: Sequence[int], i: int) -> tuple[int, ...]:
    return (*members, i)


def _with_between(graph: Graph, members: Sequence[int], pool: Sequence[int], i: int) -> tuple[int, ...]:
    half = [m for m in members if (m < graph.backward_start) == (i < graph.backward_start)] or [i]
    first, last = min(*half, i), max(*half, i)
    return tuple({*members, *(other for other in pool if first <= other <= last)})


def _start(graph: Graph, pool: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the seed with as few operations before it as it takes to have rows."""
    members, before = (seed,), [i for i in pool if i < seed]
    while True:
        try:
            _rows(graph, members)
        except ScheduleError:
            if not before:
                raise
            members = (before.pop(), *members)
        else:
            return members


def _row_count(graph: Graph, members: Sequence[int]) -> int:
    """Return the number of rows of operations; 0 if the linker cannot split them."""
    try:
        return _rows(graph, members)
    except ScheduleError:
        return 0


def _rows(graph: Graph, members: Sequence[int]) -> int:
    return split_step(graph, FlatSplit(tuple(sorted(members)), 2)).rows


def _pool(graph: Graph, seed: int) -> list[int]:
    """Return the operations with a rule for rows that are connected to the seed by large values."""
    touching: dict[int, set[int]] = {}
    for i, op in enumerate(graph.operations):
        for owner in {graph.root[v] for v in (*op.reads, *op.writes) if v is not None}:
            touching.setdefault(owner, set()).add(i)
    op = graph.operations[seed]
    least = _SHARE * max(graph.nbytes(v) for v in (*op.reads, *op.writes) if v is not None)
    pool, queue = set[int](), [seed]
    while queue:
        i = queue.pop()
        op = graph.operations[i]
        if i in pool or (not op.view and (op.op not in ROWS.operators or why_not_drawn(graph, op))):
            continue
        pool.add(i)
        for owner in {graph.root[v] for v in (*op.reads, *op.writes) if v is not None}:
            if graph.nbytes(owner) >= least and graph.values[owner].kind != "parameter":
                queue += touching[owner]
    return sorted(i for i in pool if not graph.operations[i].view)
