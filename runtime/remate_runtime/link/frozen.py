"""A step of which some gradients are not wanted: what only they need neither runs nor is kept. Needs no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..flat_step.graph import FlatPage, FlatRecompute, Graph, Number, Op, Ref
from .events import Linked, RecomputeRun, Run
from .linker import link


def without_gradients(linked: Linked, sources: Collection[int]) -> Linked:
    """The step without the gradients of these sources (values of the graph): of parameters that were frozen after
    planning. Forward stays as it is, and so do the operations that the other gradients come from; values are
    renumbered.
    """
    graph = linked.graph
    gradients = tuple((source, value) for source, value in graph.gradients if source not in sources)
    kept = _needed(graph, [value for _, value in gradients])
    numbers = {op: at for at, op in enumerate(kept)}
    live = {graph.root[value] for _, value in gradients}
    new = _numbers_of_values(graph, numbers)
    lost = {value for _, value in graph.gradients} - {value for _, value in gradients}
    left = [page for page in linked.pages if page.value not in lost]
    pages = [page for page in (_moved(page, kept, new) for page in left) if page is not None]
    return link(_only(graph, gradients, kept, numbers, new), _needed_recomputes(linked, numbers, live), pages)


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
    """Those of which something is still read before the next recomputation, by the new numbers of the operations. live:
    owners of the storages that are there to the end."""
    graph, found, before = (
        linked.graph,
        list[FlatRecompute](),
        len(numbers) - 1,
    )  # what comes behind the last run: views
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


def _numbers_of_values(graph: Graph, numbers: Mapping[int, int]) -> dict[int, int]:
    """The values that operations with new numbers, or the caller, make, by their old numbers."""
    values = [at for at, value in enumerate(graph.values) if value.producer < 0 or value.producer in numbers]
    return {old: at for at, old in enumerate(values)}


def _moved(page: FlatPage, kept: Sequence[int], new: Mapping[int, int]) -> FlatPage | None:
    """A page by the new numbers, its points at the next operation that is left; None where nothing is left of it."""

    def point(at: int | None) -> int | None:
        found = None if at is None else bisect_left(kept, at)
        return None if found == len(kept) else found

    gone, back = point(page.gone), point(page.back)
    if page.gone is not None and (gone is None or gone == back):
        return None
    return FlatPage(new[page.value], page.to, point(page.out), gone, back)


def _only(
    graph: Graph,
    gradients: tuple[tuple[int, int], ...],
    kept: Sequence[int],
    numbers: Mapping[int, int],
    new: Mapping[int, int],
) -> Graph:
    """The graph with the operations of `kept` alone, and the values that they, or the caller, make."""
    values = list(new)

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
