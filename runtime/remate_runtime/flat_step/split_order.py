"""In which order a half of the step runs around the window of a split."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..errors import ScheduleError
from .graph import Graph, Op
from .rows import NOT_SPLIT


def around_window(graph: Graph, half: range, members: Collection[int]) -> Iterator[int | list[int]]:
    """The operations of a half, with a list for its window: operations between its members that read nothing of it come
    before, the others behind. Raises ScheduleError R091 where no order works."""
    inside = [i for i in half if i in members]
    if not inside:
        yield from half
        return
    made = {v for i in inside for v in graph.operations[i].writes}
    before, behind = list[int](), list[int]()
    for i in range(inside[0], inside[-1] + 1):
        op = graph.operations[i]
        if i in members:
            _check_between(graph, op, behind)
        elif made.isdisjoint(op.reads):
            before.append(i)
        else:
            behind.append(i)
            made.update(op.writes)
    _check_random(graph, before, behind)
    yield from range(half.start, inside[0])
    yield from before
    yield inside
    yield from behind
    yield from range(inside[-1] + 1, half.stop)


def _check_between(graph: Graph, op: Op, behind: Sequence[int]) -> None:
    """What runs behind the window must not lead back into it; views follow the tiles."""
    made = {v: b for b in behind if not graph.operations[b].view for v in graph.operations[b].writes}
    for value in op.reads:
        between = made.get(graph.root[value])
        if between is not None:
            name = graph.operations[between].id[:120]
            message = f"{op.id[:120]!r} cannot be split along rows: it reads what {name!r} makes of all rows"
            raise ScheduleError(NOT_SPLIT, message, hint=f"name {name}, too, or leave {op.id[:120]} out")


def _check_random(graph: Graph, before: Sequence[int], behind: Sequence[int]) -> None:
    """Random operations draw in the order of the step."""
    last = max((i for i in before if graph.operations[i].random), default=-1)
    if any(graph.operations[i].random and i < last for i in behind):
        message = f"{graph.operations[last].id[:120]!r} would draw random numbers before operations ahead of it"
        raise ScheduleError(NOT_SPLIT, message, hint="split fewer operations")
