"""When gradients are complete, which go to their owners together, and which these may free. Needs no torch.

Which gradients go together follows from the step without recomputation, so that it is the same for every plan:
recomputations can at most delay a delivery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ..flat_step.graph import Graph

TOGETHER = 1 << 20  # bytes of gradients that are worth a delivery; few small ones would cost time and save nothing


class Gathered(NamedTuple):
    """Gradients that are delivered together (numbers among the graph's), at the earliest behind this operation: the
    last one of forward if that is the forward/backward boundary."""

    behind: int
    gradients: tuple[int, ...]


def last_touches(graph: Graph) -> Mapping[int, int]:
    """By owner of a storage, the last backward operation that reads or writes it, views apart."""
    operations, root = graph.operations, graph.root
    touched: dict[int, int] = {}
    for index in range(graph.backward_start, len(operations)):
        if not operations[index].view:
            for value in (*operations[index].reads, *operations[index].writes):
                if value is not None:
                    touched[root[value]] = index
    return touched


def gradient_views(graph: Graph, touched: Mapping[int, int]) -> Mapping[int, list[int]]:
    """By backward operation, the gradients that are views and whose storage no later operation touches: the view is
    made there, so that the gradient need not wait for the end of the step."""
    found: dict[int, list[int]] = {}
    for _, value in graph.gradients:
        producer, owner = graph.values[value].producer, graph.root[value]
        if producer >= 0 and graph.operations[producer].view and owner in touched:
            found.setdefault(touched[owner], []).append(value)
    return found


def freed_by_owner(graph: Graph) -> frozenset[int]:
    """Owners of the storages that hold gradients of parameters alone, which backward makes: these may be gone when they
    are delivered. What somebody else holds stays, and so does the gradient of an input, which waits for backward to
    end."""
    root, values = graph.root, graph.values
    made = {root[g] for _, g in graph.gradients if values[root[g]].producer >= graph.backward_start}
    return frozenset(made - {root[g] for source, g in graph.gradients if values[source].kind != "parameter"})


def copied(graph: Graph) -> Mapping[int, int]:
    """Gradients (numbers among the graph's) whose owners get a copy when they are delivered, and its bytes: the storage
    is a tangent's or another source's, or that of an earlier gradient, and each owner may keep and change its own."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for number, (_, value) in enumerate(graph.gradients):
        owner = graph.root[value]
        if owner in taken or graph.values[owner].producer < 0:
            found[number] = graph.nbytes_of_copy(value)
        taken.add(owner)
    return found


def gathered(graph: Graph, touched: Mapping[int, int]) -> list[Gathered]:
    """A gradient is complete behind the last operation that touches its storage or reads the parameter's: an optimizer
    may write to that then. As soon as the complete ones have TOGETHER bytes they are delivered; the last ones at the
    end."""
    root, backward_start, complete = graph.root, graph.backward_start - 1, dict[int, int]()
    for source, value in graph.gradients:  # those that share a storage go together
        owner = root[value]
        complete[owner] = max(
            touched.get(owner, backward_start),
            touched.get(root[source], backward_start),
            complete.get(owner, backward_start),
        )
    behind = [complete[root[value]] for _, value in graph.gradients]
    found: list[Gathered] = []
    waiting: list[int] = []
    owners: set[int] = set()
    for at, numbers in groupby(sorted(range(len(behind)), key=behind.__getitem__), key=behind.__getitem__):
        waiting += numbers
        owners.update(root[graph.gradients[number][1]] for number in waiting)
        if sum(map(graph.nbytes, owners)) >= TOGETHER:
            found.append(Gathered(at, tuple(waiting)))
            waiting, owners = [], set()
    if waiting:
        found.append(Gathered(len(graph.operations) - 1, tuple(waiting)))
    elif found:
        found[-1] = found[-1]._replace(behind=len(graph.operations) - 1)
    return found


def deliveries(
    graph: Graph, touched: Mapping[int, int], order: Sequence[int], backward_start: int
) -> dict[int, tuple[int, ...]]:
    """By position in `order`, the gradients that are delivered behind it: where all that go together are complete.

    touched: `last_touches`. order: operations as they execute, negative numbers at `backward_start` and where values
    are paged.
    """
    together = gathered(graph, touched)
    if len(together) < 2:
        return {len(order) - 1: one.gradients for one in together}
    root, gradients = graph.root, graph.gradients
    last = {root[value]: backward_start for pair in gradients for value in pair}
    for at in range(backward_start + 1, len(order)):
        if order[at] < 0:  # values are paged, and no gradient is
            continue
        op = graph.operations[order[at]]
        for value in (*op.reads, *op.writes):
            if value is not None and root[value] in last:
                last[root[value]] = at
    found: dict[int, tuple[int, ...]] = {}
    for one in together[:-1]:
        at = max(last[root[value]] for number in one.gradients for value in gradients[number])
        found[at] = (*found.get(at, ()), *one.gradients)
    end = len(order) - 1
    found[end] = (*found.get(end, ()), *together[-1].gradients)
    return found
