"""Finds operations that must return the same bits in every run, and so are interpreted.

An interpreted operation returns the same result when it is recomputed. A compiled one may be fused differently and then
rounds differently. Mostly this is harmless, because a result changes as little as its arguments do. It is not harmless

- if floats are compared with floats: the gradient of a maximum goes to elements with `x == amax(x)`, and to none if x
  was rounded differently when the maximum was computed; `x >= topk(x)` selects one element fewer;
- if floats select indices (`topk`, `sort`, `argmax`) and these select rows of tensors that were kept;
- if floats are converted to integers (buckets of positions) and lie exactly on the border, because they are computed
  from integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...flat_step.graph import Graph, Op
from ...link.events import Linked, RecomputeRun

_FLOATING = frozenset(("f64", "f32", "f16", "bf16"))
_INTEGERS = frozenset(("i64", "i32", "i16", "i8", "u8"))
_COMPARED = frozenset(f"aten.{name}.Tensor" for name in ("eq", "ne", "ge", "gt", "le", "lt"))
_EXTREMES = frozenset(
    (
        *("amax", "amin", "aminmax", "max", "min", "linalg_vector_norm", "norm", "index_reduce"),
        *("topk", "sort", "kthvalue", "median", "nanmedian", "mode"),
    )
)


def exact(linked: Linked) -> frozenset[int]:
    """Return the operations of a step that must not be compiled for this reason."""
    graph = linked.graph
    again = {event.op for event in linked.events if isinstance(event, RecomputeRun)}
    ahead, still = _of_forward_alone(graph), _of_integers_alone(graph)
    compared = {at for at, op in enumerate(graph.operations) if op.op in _COMPARED and len(_floats(graph, op)) == 2}
    choosing = {at for at, op in enumerate(graph.operations) if at in again and _chooses(graph, op)}
    buckets = {at for at, op in enumerate(graph.operations) if at in still and _chooses(graph, op)}

    def varies(at: int) -> bool:  # an operation of forward that runs once reads first results only
        return at in ahead and (at in again or at >= graph.backward_start)

    operations = _downstream(graph, compared | choosing, varies) & (again | compared)
    operations |= {at for at in _sources(graph, compared) if _name(graph.operations[at]) in _EXTREMES}
    return frozenset(operations | _downstream(graph, buckets, lambda at: at in still))


def _name(op: Op) -> str:
    return op.op.split(".")[1]


def _floats(graph: Graph, op: Op) -> list[int]:
    return [value for value in op.reads if graph.values[value].type.dtype in _FLOATING]


def _chooses(graph: Graph, op: Op) -> bool:
    """Return whether an operation converts floats to integers. Poolings do not count: only their gradient reads the
    chosen positions, and either of two nearly equal neighbours is right for it."""
    if op.view or not _floats(graph, op):
        return False
    indices = {value for value in op.writes if value is not None and graph.values[value].type.dtype in _INTEGERS}
    if "max_pool" not in op.op:
        return bool(indices)
    readers = (reader for reader in graph.operations if indices.intersection(reader.reads))
    return any(reader.view or not reader.op.startswith(f"aten.{_name(op)}_backward") for reader in readers)


def _of_forward_alone(graph: Graph) -> set[int]:
    """Return the operations, also of backward, that no gradient reaches."""
    return _closed(graph, lambda value: graph.values[value].kind != "tangent")


def _of_integers_alone(graph: Graph) -> set[int]:
    """Return the operations whose arguments follow from integers and constants only."""
    whole = {*_INTEGERS, "bool"}

    def fixed(at: int) -> bool:
        return graph.values[at].kind == "constant" or graph.values[at].type.dtype in whole

    return {at for at in _closed(graph, fixed) if not graph.operations[at].random}


def _closed(graph: Graph, starts: Callable[[int], bool]) -> set[int]:
    """Return the operations whose arguments all come from sources that `starts` accepts."""
    values = {at for at, value in enumerate(graph.values) if value.producer < 0 and starts(at)}
    operations: set[int] = set()
    for at, op in enumerate(graph.operations):
        if all(value in values for value in op.reads):
            operations.add(at)
            values.update(value for value in op.writes if value is not None)
    return operations


def _sources(graph: Graph, operations: Iterable[int]) -> set[int]:
    """Return the operations whose results these operations read, directly or through views."""
    read = {graph.root[value] for at in operations for value in graph.operations[at].reads}
    return {graph.values[value].producer for value in read if graph.values[value].producer >= 0}


def _downstream(graph: Graph, heads: Iterable[int], through: Callable[[int], bool]) -> set[int]:
    """Return `heads` and all operations that lead to them through operations that `through` accepts."""
    operations: set[int] = set()
    row = set(heads)
    while row:
        operations |= row
        row = {at for at in _sources(graph, row) if through(at)} - operations
    return operations
