"""When gradients are complete, and which go to their owners together. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..step.graph import Graph

TOGETHER = 1 << 20  # bytes of gradients that are worth a delivery; few small ones would cost time and save nothing


def last_touches(graph: Graph) -> Mapping[int, list[int]]:
    """By backward operation, the gradients that are views and whose storage no later operation reads or writes: the view
    is made there, so that the gradient need not wait for the end of the step."""
    operations, root = graph.operations, graph.root
    touched: dict[int, int] = {}
    for index in range(graph.backward_start, len(operations)):
        if not operations[index].view:
            for value in (*operations[index].reads, *operations[index].writes):
                if value is not None:
                    touched[root[value]] = index
    found: dict[int, list[int]] = {}
    for _, value in graph.gradients:
        producer = graph.values[value].producer
        if producer >= 0 and operations[producer].view and root[value] in touched:
            found.setdefault(touched[root[value]], []).append(value)
    return found


def deliveries(graph: Graph, order: Sequence[int], turn: int) -> dict[int, tuple[int, ...]]:
    """By position in `order`, the gradients (numbers among the graph's) that are delivered behind it.

    order: operations as they execute, a negative number at `turn`. A gradient is complete behind the last execution that
    touches its storage or reads the parameter's: an optimizer may write to that then. As soon as the complete ones have
    TOGETHER bytes they are delivered; the rest at the end.
    """
    root, gradients = graph.root, graph.gradients
    last: dict[int, int] = {}
    for at in range(turn + 1, len(order)):
        op = graph.operations[order[at]]
        for value in (*op.reads, *op.writes):
            if value is not None:
                last[root[value]] = at
    complete: dict[int, int] = {}  # by storage: gradients that share one go together
    for source, value in gradients:
        at = max(last.get(root[value], turn), last.get(root[source], turn), complete.get(root[value], turn))
        complete[root[value]] = at
    found: dict[int, tuple[int, ...]] = {}
    waiting: list[int] = []
    nbytes, counted = 0, set[int]()
    for number in sorted(range(len(gradients)), key=lambda number: complete[root[gradients[number][1]]]):
        owner = root[gradients[number][1]]
        if waiting and nbytes >= TOGETHER and complete[owner] > complete[root[gradients[waiting[-1]][1]]]:
            found[complete[root[gradients[waiting[-1]][1]]]] = tuple(waiting)
            waiting, nbytes = [], 0
        waiting.append(number)
        nbytes += 0 if owner in counted else graph.nbytes(owner)
        counted.add(owner)
    if waiting:
        found[len(order) - 1] = tuple(waiting)
    return found
