"""A step of which some gradients are not wanted: what only they need neither runs nor is kept. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..flat_step.graph import FlatRecompute, Graph, Number, Op, Ref
from .events import Linked, RecomputeRun, Run
from .linker import link


def without_gradients(linked: Linked, sources: Collection[int]) -> Linked:
    """The step without the gradients of these sources (values of the graph): of parameters that were frozen after
    planning. Forward stays as it is, and so do the operations that the other gradients come from; values are renumbered.
    """
    graph = linked.graph
    gradients = tuple((source, value) for source, value in graph.gradients if source not in sources)
    kept = _needed(graph, [value for _, value in gradients])
    numbers = {op: at for at, op in enumerate(kept)}
    live = {graph.root[value] for _, value in gradients}
    return link(_only(graph, gradients, kept, numbers), _needed_recomputes(linked, numbers, live))


def _needed(graph: Graph, gradients: Sequence[int]) -> list[int]:
    """All operations of forward, and those of backward that lead to the gradients or draw from the generator."""
    needed, kept = set(gradients), []
    for index in range(len(graph.operations) - 1, graph.backward_start - 1, -1):
        op = graph.operations[index]
        if op.random or not needed.isdisjoint(op.writes):
            kept.append(index)
            needed.update(op.reads)
    return [*range(graph.backward_start), *reversed(kept)]


def _needed_recomputes(linked: Linked, numbers: Mapping[int, int], live: set[int]) -> list[FlatRecompute]:
    """Those of which something is still read before the next recomputation, by the new numbers of the operations. live: owners
    of the storages that are there to the end."""
    graph, found, before = linked.graph, list[FlatRecompute](), len(numbers)
    for position in range(len(linked.events) - 1, -1, -1):
        event = linked.events[position]
        if position == linked.backward_start:
            live.update(graph.root[v] for v in (*graph.outputs, *(v for update in graph.updates for v in update)))
        if not isinstance(event, Run | RecomputeRun) or event.op not in numbers:
            continue
        op = graph.operations[event.op]
        made = {graph.root[value] for value in op.writes if value is not None}
        if isinstance(event, Run):
            before = numbers[event.op]
        elif live.isdisjoint(made):
            continue
        else:
            found.append(FlatRecompute(numbers[event.op], before))
        live -= made
        live.update(graph.root[value] for value in op.reads)
    return found[::-1]


def _only(
    graph: Graph, gradients: tuple[tuple[int, int], ...], kept: Sequence[int], numbers: Mapping[int, int]
) -> Graph:
    """The graph with the operations of `kept` alone, and the values that they, or the caller, make."""
    values = [at for at, value in enumerate(graph.values) if value.producer < 0 or value.producer in numbers]
    new = {old: at for at, old in enumerate(values)}

    def argument(one: Any) -> Any:
        if isinstance(one, Ref):
            return Ref(new[one.value])
        if isinstance(one, Number):
            return one.of(new.__getitem__)
        return tuple(map(argument, one)) if isinstance(one, tuple) else one

    def operation(op: Op) -> Op:
        return replace(
            op,
            args=tuple(map(argument, op.args)),
            kwargs={name: argument(one) for name, one in op.kwargs.items()},
            reads=tuple(new[value] for value in op.reads),
            writes=tuple(None if value is None else new[value] for value in op.writes),
        )

    found = [graph.values[at] for at in values]
    return replace(
        graph,
        values=tuple(v if v.producer < 0 else replace(v, producer=numbers[v.producer]) for v in found),
        operations=tuple(operation(graph.operations[index]) for index in kept),
        outputs=tuple(new[value] for value in graph.outputs),
        gradients=tuple((new[source], new[value]) for source, value in gradients),
        updates=tuple((new[buffer], new[value]) for buffer, value in graph.updates),
        root=tuple(new[graph.root[at]] for at in values),
    )
