"""Indices of values in operations: which an argument has, and operations of which all are replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from .graph import Argument, Graph, Number, Op, Ref, roots


def values_in(argument: Argument) -> Iterator[int]:
    """Yield the values that an argument (as in `Op`) refers to."""
    if isinstance(argument, Ref):
        yield argument.value
    elif isinstance(argument, tuple):
        for item in argument:
            yield from values_in(item)


def renumbered_argument(argument: Argument, value: Callable[[int], int]) -> Any:
    """Return an argument (as in `Op`), a tuple or a dict of arguments with each value replaced."""
    if isinstance(argument, Ref):
        return Ref(value(argument.value))
    if isinstance(argument, Number):
        return argument.of(value)
    if isinstance(argument, tuple):
        return tuple(renumbered_argument(item, value) for item in argument)
    if isinstance(argument, dict):
        return {name: renumbered_argument(item, value) for name, item in argument.items()}
    return argument


def renumbered(op: Op, value: Callable[[int], int]) -> Op:
    """Return an operation with each value replaced in its arguments, reads and writes."""
    return replace(
        op,
        args=renumbered_argument(op.args, value),
        kwargs=renumbered_argument(op.kwargs, value),
        reads=tuple(map(value, op.reads)),
        writes=tuple(None if written is None else value(written) for written in op.writes),
    )


def without_unproduced(graph: Graph) -> Graph:
    """Return a graph without the values of removed operations. The others get new numbers."""
    produced = {v for op in graph.operations for v in op.writes}
    kept = [v for v, about in enumerate(graph.values) if about.kind != "op" or v in produced]
    if len(kept) == len(graph.values):
        return graph
    new = {v: at for at, v in enumerate(kept)}
    operations = tuple(renumbered(op, new.__getitem__) for op in graph.operations)
    return replace(
        graph,
        values=tuple(graph.values[v] for v in kept),
        operations=operations,
        outputs=tuple(new[v] for v in graph.outputs),
        gradients=tuple((new[s], new[v]) for s, v in graph.gradients),
        updates=tuple((new[b], new[v]) for b, v in graph.updates),
        root=roots(len(kept), operations),
    )
