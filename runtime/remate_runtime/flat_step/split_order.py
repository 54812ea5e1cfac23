"""The order in which forward or backward runs around the window of a split."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..errors import ScheduleError
from .graph import Graph, Op
from .rows import NOT_SPLIT


def around_window(graph: Graph, half: range, members: Collection[int]) -> Iterator[int | list[int]]:
    """Yield the operations of a half of the step, with a list for its window.

    Operations between the members of the window that do not depend on it run before it. The others run after it.

    Args:
        graph: The step.
        half: The operations of forward or of backward.
        members: The operations of the split.

    Raises:
        ScheduleError: R091, no such order exists.
    """
    inside = [i for i in half if i in members]
    if not inside:
        yield from half
        return
    derived = {v for i in inside for v in graph.operations[i].writes}
    before, after = list[int](), list[int]()
    for i in range(inside[0], inside[-1] + 1):
        op = graph.operations[i]
        if i in members:
            _check_between(graph, op, after)
        elif derived.isdisjoint(op.reads):
            before.append(i)
        else:
            after.append(i)
            derived.update(op.writes)
    _check_random(graph, before, after)
    yield from range(half.start, inside[0])
    yield from before
    yield inside
    yield from after
    yield from range(inside[-1] + 1, half.stop)


def _check_between(graph: Graph, op: Op, after: Sequence[int]) -> None:
    """Check that no operation after the window leads back into it. Views follow the tiles."""
    producers = {v: b for b in after if not graph.operations[b].view for v in graph.operations[b].writes}
    for value in op.reads:
        between = producers.get(graph.root[value])
        if between is not None:
            name = graph.operations[between].id[:120]
            message = f"{op.id[:120]!r} cannot be split along rows: it reads the result of {name!r} for all rows"
            raise ScheduleError(NOT_SPLIT, message, hint=f"also name {name}, or leave {op.id[:120]} out")


def _check_random(graph: Graph, before: Sequence[int], after: Sequence[int]) -> None:
    """Check that random operations draw in the order of the step."""
    last = max((i for i in before if graph.operations[i].random), default=-1)
    if any(graph.operations[i].random and i < last for i in after):
        message = f"{graph.operations[last].id[:120]!r} would draw random numbers before operations that precede it"
        raise ScheduleError(NOT_SPLIT, message, hint="split fewer operations")
