"""Deliveries: when gradients are complete, which are delivered together, and which are freed. Does not require torch.

Which gradients belong together follows from the step without recomputation, so that it is the same for every plan:
recomputations can only delay a delivery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ..flat_step.graph import Graph

TOGETHER = 1 << 20  # least bytes of a delivery; small ones would cost time and save nothing


class Gathered(NamedTuple):
    """Gradients that are delivered together (numbers of the graph's), at the earliest after operation `after`.

    `after` may be the last operation of forward, which means the forward/backward boundary.
    """

    after: int
    gradients: tuple[int, ...]


def last_touches(graph: Graph) -> Mapping[int, int]:
    """Return by owner of a storage the last backward operation, except views, that reads or writes it."""
    operations, root = graph.operations, graph.root
    touched: dict[int, int] = {}
    for index in range(graph.backward_start, len(operations)):
        if not operations[index].view:
            for value in (*operations[index].reads, *operations[index].writes):
                if value is not None:
                    touched[root[value]] = index
    return touched


def gradient_views(graph: Graph, touched: Mapping[int, int]) -> Mapping[int, list[int]]:
    """Return by backward operation the gradients that are views of storages which no later operation touches.

    The view is created there, so that the gradient need not wait for the end of the step.
    """
    views: dict[int, list[int]] = {}
    for _, value in graph.gradients:
        producer, owner = graph.values[value].producer, graph.root[value]
        if producer >= 0 and graph.operations[producer].view and owner in touched:
            views.setdefault(touched[owner], []).append(value)
    return views


def freed_by_owner(graph: Graph) -> frozenset[int]:
    """Return owners of storages that contain only gradients of parameters and that backward allocates.

    They may be freed when they are delivered. Storages that other code uses stay, and so does the gradient of an input,
    which waits for the end of backward.
    """
    root, values = graph.root, graph.values
    produced = {root[g] for _, g in graph.gradients if values[root[g]].producer >= graph.backward_start}
    return frozenset(produced - {root[g] for source, g in graph.gradients if values[source].kind != "parameter"})


def copied(graph: Graph) -> Mapping[int, int]:
    """Return the gradients (numbers of the graph's) whose owners get a copy at delivery, and its bytes.

    Their storage belongs to a tangent, a different source or an earlier gradient, and each owner may keep and change
    its own.
    """
    copies: dict[int, int] = {}
    taken: set[int] = set()
    for number, (_, value) in enumerate(graph.gradients):
        owner = graph.root[value]
        if owner in taken or graph.values[owner].producer < 0:
            copies[number] = graph.nbytes_of_copy(value)
        taken.add(owner)
    return copies


def gathered(graph: Graph, touched: Mapping[int, int]) -> list[Gathered]:
    """Return the groups of gradients that are delivered together.

    A gradient is complete after the last operation that touches its storage or reads the parameter's, because an
    optimizer may write to that then. Complete gradients are delivered as soon as they have TOGETHER bytes; the last
    ones at the end.
    """
    root, backward_start, complete = graph.root, graph.backward_start - 1, dict[int, int]()
    for source, value in graph.gradients:  # gradients that share a storage are delivered together
        owner = root[value]
        complete[owner] = max(
            touched.get(owner, backward_start),
            touched.get(root[source], backward_start),
            complete.get(owner, backward_start),
        )
    completed_at = [complete[root[value]] for _, value in graph.gradients]
    groups: list[Gathered] = []
    waiting: list[int] = []
    owners: set[int] = set()
    nbytes = 0
    for at, numbers in groupby(
        sorted(range(len(completed_at)), key=completed_at.__getitem__), key=completed_at.__getitem__
    ):
        for number in numbers:
            waiting.append(number)
            owner = root[graph.gradients[number][1]]
            if owner not in owners:
                owners.add(owner)
                nbytes += graph.nbytes(owner)
        if nbytes >= TOGETHER:
            groups.append(Gathered(at, tuple(waiting)))
            waiting, owners, nbytes = [], set[int](), 0
    if waiting:
        groups.append(Gathered(len(graph.operations) - 1, tuple(waiting)))
    elif groups:
        groups[-1] = groups[-1]._replace(after=len(graph.operations) - 1)
    return groups


def deliveries(
    graph: Graph, touched: Mapping[int, int], order: Sequence[int], backward_start: int
) -> dict[int, tuple[int, ...]]:
    """Return by position in `order` the gradients that are delivered after it, when all of a group are complete.

    Args:
        graph: The step.
        touched: The result of `last_touches`.
        order: Operations in order of execution; negative numbers at `backward_start` and where values are paged.
        backward_start: Position of the forward/backward boundary.
    """
    together = gathered(graph, touched)
    if len(together) < 2:
        return {len(order) - 1: group.gradients for group in together}
    root, gradients = graph.root, graph.gradients
    last = {root[value]: backward_start for pair in gradients for value in pair}
    for at in range(backward_start + 1, len(order)):
        if order[at] < 0:  # values are paged here, and no gradient is
            continue
        op = graph.operations[order[at]]
        for value in (*op.reads, *op.writes):
            if value is not None and root[value] in last:
                last[root[value]] = at
    delivered: dict[int, tuple[int, ...]] = {}
    for group in together[:-1]:
        at = max(last[root[value]] for number in group.gradients for value in gradients[number])
        delivered[at] = (*delivered.get(at, ()), *group.gradients)
    end = len(order) - 1
    delivered[end] = (*delivered.get(end, ()), *together[-1].gradients)
    return delivered
