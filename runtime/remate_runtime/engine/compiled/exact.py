"""Operations that must give the same bits whenever they run, and so are interpreted: where a rounding would choose.

Interpreted, an operation that runs again gives what it gave at first. Compiled, it may be fused otherwise then, and
rounds otherwise. That is harmless where a result moves as little as its arguments did. It is not
- where floats are compared with floats (the gradient of a maximum goes where `x == amax(x)`: nowhere, if x was rounded
  otherwise when the maximum was taken; `x >= topk(x)` keeps one fewer);
- where numbers of elements are chosen by floats (`topk`, `sort`, `argmax`), and rows are read by them that were kept
  since;
- where floats become integers (buckets of positions), and what they are made of lies on the border by design, because
  it
  follows from integers alone.
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
    """The operations of a step that must not be compiled for this reason."""
    graph = linked.graph
    again = {event.op for event in linked.events if isinstance(event, RecomputeRun)}
    ahead, still = _of_forward_alone(graph), _of_integers_alone(graph)
    compared = {at for at, op in enumerate(graph.operations) if op.op in _COMPARED and len(_floats(graph, op)) == 2}
    choosing = {at for at, op in enumerate(graph.operations) if at in again and _chooses(graph, op)}
    buckets = {at for at, op in enumerate(graph.operations) if at in still and _chooses(graph, op)}
    # What ran once, in forward, has read first results.
    varies = lambda at: at in ahead and (at in again or at >= graph.backward_start)  # noqa: E731
    operations = _behind(graph, compared | choosing, varies) & (again | compared)
    operations |= {at for at in _sources(graph, compared) if _name(graph.operations[at]) in _EXTREMES}
    return frozenset(operations | _behind(graph, buckets, lambda at: at in still))


def _name(op: Op) -> str:
    return op.op.split(".")[1]


def _floats(graph: Graph, op: Op) -> list[int]:
    return [value for value in op.reads if graph.values[value].type.dtype in _FLOATING]


def _chooses(graph: Graph, op: Op) -> bool:
    """Whether it makes integers of floats. Which of nearly equal neighbours a pooling chose tells nobody but its
    gradient, for which one is as good as the other."""
    if op.view or not _floats(graph, op):
        return False
    indices = {value for value in op.writes if value is not None and graph.values[value].type.dtype in _INTEGERS}
    if "max_pool" not in op.op:
        return bool(indices)
    readers = (reader for reader in graph.operations if indices.intersection(reader.reads))
    return any(reader.view or not reader.op.startswith(f"aten.{_name(op)}_backward") for reader in readers)


def _of_forward_alone(graph: Graph) -> set[int]:
    """Operations, of backward too, that no gradient flows into."""
    return _closed(graph, lambda value: graph.values[value].kind != "tangent")


def _of_integers_alone(graph: Graph) -> set[int]:
    """Operations on what follows from integers and constants."""
    whole = {*_INTEGERS, "bool"}

    def fixed(at: int) -> bool:
        return graph.values[at].kind == "constant" or graph.values[at].type.dtype in whole

    return {at for at in _closed(graph, fixed) if not graph.operations[at].random}


def _closed(graph: Graph, starts: Callable[[int], bool]) -> set[int]:
    """Operations whose arguments all come from sources that `starts` takes."""
    values = {at for at, value in enumerate(graph.values) if value.producer < 0 and starts(at)}
    operations: set[int] = set()
    for at, op in enumerate(graph.operations):
        if all(value in values for value in op.reads):
            operations.add(at)
            values.update(value for value in op.writes if value is not None)
    return operations


def _sources(graph: Graph, operations: Iterable[int]) -> set[int]:
    """The operations that made what these read, views aside."""
    read = {graph.root[value] for at in operations for value in graph.operations[at].reads}
    return {graph.values[value].producer for value in read if graph.values[value].producer >= 0}


def _behind(graph: Graph, heads: Iterable[int], through: Callable[[int], bool]) -> set[int]:
    """`heads`, and all that leads to them by operations that `through` takes."""
    operations: set[int] = set()
    row = set(heads)
    while row:
        operations |= row
        row = {at for at in _sources(graph, row) if through(at)} - operations
    return operations
