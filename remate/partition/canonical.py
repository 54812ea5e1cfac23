"""The canonical form of a leaf: its operations without names and numbers.

Leaves of equal form do the same work on different values. They share a template of the file and are solved once. The
form contains operators, literals, wiring, types, costs, and the parameters whose gradient is computed in the leaf. It
does not contain which results are read outside the leaf; planning uses `exports` for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from remate_runtime.flat_step import LIVE, Graph, Number, Op, Ref

from .hierarchy import BlockSpan


class CanonicalForm(msgspec.Struct, frozen=True):
    """A canonical form.

    Attributes:
        key: Equal for equal leaves.
        operations: Graph indices, forward then backward.
        sources: Values from outside, by first appearance.
        gradients: (parameter, its gradient) computed here.
        updates: (buffer, its next value).
    """

    key: bytes
    operations: tuple[int, ...]
    sources: tuple[int, ...]
    gradients: tuple[tuple[int, int], ...]
    updates: tuple[tuple[int, int], ...]


def form(graph: Graph, part: BlockSpan) -> CanonicalForm:
    """Return the canonical form of a leaf."""
    operations = (*range(*part.forward), *range(*part.backward))
    computed = {v for i in operations for v in graph.operations[i].writes if v is not None}
    number: dict[int, int] = {}
    sources: list[int] = []

    def numbered(value: int) -> int:
        if value not in number:
            number[value] = len(number)
            if value not in computed:
                sources.append(value)
        return number[value]

    rows = [_row(graph, graph.operations[i], numbered) for i in operations]
    inside = computed.union(sources)
    gradients = tuple(
        (p, g) for p, g in graph.gradients if g in computed and p in inside and graph.values[p].kind == "parameter"
    )
    first = part.forward[0] == 0  # the first leaf also declares values that no operation produces or reads
    updates = tuple((b, v) for b, v in graph.updates if v in computed or (first and graph.values[v].kind != "op"))
    ends = [
        sorted((numbered(p), number[g]) for p, g in gradients),
        sorted((numbered(b), numbered(v)) for b, v in updates),
        [numbered(v) for v in (_unread_constants(graph) if first else ())],
    ]
    described = [_source(graph, v) for v in sources]
    body = [part.forward[1] - part.forward[0], rows, described, ends]
    return CanonicalForm(msgspec.json.encode(body), operations, tuple(sources), gradients, updates)


def exports(graph: Graph, part: BlockSpan, readers: list[list[int]]) -> tuple[int, ...]:
    """Return positions of the values that leave the leaf, among the values that it produces.

    A value leaves if an operation outside reads it, or if it leaves the step.

    Args:
        graph: The step.
        part: The leaf.
        readers: For each value, the operations that read it.
    """
    operations = (*range(*part.forward), *range(*part.backward))
    inside, leaving = set(operations), {*graph.outputs, *(g for _, g in graph.gradients)}
    produced = [v for i in operations for v in graph.operations[i].writes if v is not None]
    return tuple(k for k, v in enumerate(produced) if v in leaving or any(i not in inside for i in readers[v]))


def storages(graph: Graph, shape: CanonicalForm) -> tuple[tuple[int, int], ...]:
    """Return, for each source, the first source on the same storage, and the bytes of that storage.

    Leaves of one form can differ here, and so in memory, if an input is a view of a larger tensor.
    """
    first: dict[int, int] = {}
    return tuple((first.setdefault(graph.root[v], k), graph.nbytes(v)) for k, v in enumerate(shape.sources))


def readers_of(graph: Graph) -> list[list[int]]:
    """Return for each value the operations that read it, in step order."""
    readers: list[list[int]] = [[] for _ in graph.values]
    for i, op in enumerate(graph.operations):
        for value in op.reads:
            readers[value].append(i)
    return readers


def _unread_constants(graph: Graph) -> tuple[int, ...]:
    """Return constants that leave the step although no operation reads them."""
    read = {v for op in graph.operations for v in op.reads}
    leaving = dict.fromkeys((*graph.outputs, *(g for _, g in graph.gradients), *(v for _, v in graph.updates)))
    return tuple(v for v in leaving if graph.values[v].kind == "constant" and v not in read)


def _row(graph: Graph, op: Op, numbered: Callable[[int], int]) -> list[Any]:
    arguments = [_argument(a, numbered) for a in op.args]
    keywords = [[k, _argument(op.kwargs[k], numbered)] for k in sorted(op.kwargs)]
    writes = [None if v is None else [numbered(v), str(graph.values[v].type)] for v in op.writes]
    return [op.op, arguments, keywords, writes, op.multiple, op.ns, op.workspace]


def _argument(argument: Any, numbered: Callable[[int], int]) -> Any:
    if isinstance(argument, Ref):
        return {"value": numbered(argument.value)}
    if isinstance(argument, Number):
        return {"number": argument.text, "values": list(map(numbered, argument.values))}
    if isinstance(argument, (tuple, list)):
        return [_argument(item, numbered) for item in cast(Sequence[Any], argument)]
    return argument


def _source(graph: Graph, value: int) -> list[Any]:
    """Return kind, type and (for a constant) elements: a template's declaration of an outside value."""
    about = graph.values[value]
    kind = about.kind if about.kind in ("parameter", "buffer", "constant", LIVE) else "value"
    return [kind, str(about.type), about.data if kind == "constant" else None]
