"""Recomputations that run earlier than their results are needed, where a trial shows that a later point needs less
memory."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from remate_runtime.flat_step import FlatRecompute
from remate_runtime.format import named
from remate_runtime.link import BackwardStart, Computation, Update

from .analysis import Analysis
from .lines import entry_at
from .steps import recompute_positions
from .what_if import Trials


class Late(msgspec.Struct, frozen=True):
    where: str  # JSON pointer of the entry
    message: str
    hint: str


def needed_before(opened: Analysis) -> list[int]:
    """For each recomputation, the operation before which its result is first needed, or its own point if it cannot run
    later."""
    graph, recomputes = opened.graph, opened.expanded.recomputes
    at_position = {at: k for k, at in enumerate(recompute_positions(opened.linked))}
    maker: dict[int, int] = {}  # by value that owns a storage: the recomputation that produced its current content
    need = [len(graph.operations)] * len(recomputes)
    chained: list[list[int]] = [[] for _ in recomputes]  # recomputations at the same point that read its result

    def read(value: int, reader: int, point: int) -> None:
        k = maker.get(graph.root[value])
        if k is None:
            return
        if reader >= 0 and point == recomputes[k].before:
            chained[k].append(reader)
        else:
            need[k] = min(need[k], point)

    for at, event in enumerate(opened.linked.events):
        if isinstance(event, Update):
            read(event.value, -1, graph.backward_start)
        elif isinstance(event, BackwardStart):
            for value in graph.outputs:
                read(value, -1, graph.backward_start)
        if not isinstance(event, Computation):
            continue
        op = graph.operations[event.op]
        k = at_position.get(at, -1)
        for value in op.reads:
            read(value, k, recomputes[k].before if k >= 0 else event.op)
        for value in op.writes:
            if value is not None:
                maker.pop(value, None)
                if k >= 0:
                    maker[value] = k
    for k in range(len(recomputes) - 1, -1, -1):
        need[k] = min([need[k], *(need[j] for j in chained[k])])
    end = len(graph.operations)
    return [n if n < end else recomputes[k].before for k, n in enumerate(need)]


def later_points(opened: Analysis, trials: Trials) -> Iterator[Late]:
    """One finding for each entry in which recomputations can move later, in all instances alike, and memory falls."""
    need = needed_before(opened)
    entries: dict[str, list[int]] = {}
    for k, where in enumerate(opened.expanded.stated):
        entries.setdefault(where.rpartition("/recompute/")[0], []).append(k)
    for where, members in entries.items():
        late = _late(opened, need, members)
        if late and (entry := _tried(opened, trials, need, where, members, late)):
            yield entry


def _late(opened: Analysis, need: list[int], members: list[int]) -> list[int]:
    """Names in the entry that stand, in every instance, for recomputations whose results are only needed later."""
    expanded = opened.expanded
    early = {expanded.stated[k] for k in members if need[k] <= expanded.recomputes[k].before}
    return [k for k in members if expanded.stated[k] not in early]


def _tried(
    opened: Analysis, trials: Trials, need: list[int], where: str, members: list[int], late: list[int]
) -> Late | None:
    recomputes, operations = opened.expanded.recomputes, opened.graph.operations
    target = {k: need[k] for k in late}
    if len(late) == len(members):  # the entry moves as a whole, to the first need at each point
        first: dict[int, int] = {}
        for k in members:
            first[recomputes[k].before] = min(first.get(recomputes[k].before, need[k]), need[k])
        target = {k: first[recomputes[k].before] for k in members}
    outcome = trials.cost(FlatRecompute(r.op, target.get(k, r.before)) for k, r in enumerate(recomputes))
    now = opened.timeline
    if outcome is None or outcome.recomputes != len(recomputes) or outcome.peak > now.peak:
        return None
    if outcome.peak == now.peak and (len(late) < len(members) or outcome.area >= sum(now.during)):
        return None
    written = {k: _written(opened, where, k) for k in late}
    names = dict.fromkeys(name for name, _ in written.values())
    points = dict.fromkeys(operations[target[k]].id.removeprefix(scope) for k, (_, scope) in written.items())
    effect = (
        f"the peak falls to {outcome.peak:,} bytes" if outcome.peak < now.peak else "less memory is held in between"
    )
    listed = ", ".join(list(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    message = f"{listed} {'recomputes' if len(names) == 1 else 'recompute'} earlier than needed"
    return Late(where, message, f"recompute before {', '.join(list(points)[:4])}: {effect}")


def _written(opened: Analysis, where: str, k: int) -> tuple[str, str]:
    """The name that the entry gives recomputation `k`, and the id (with a dot) of the instance in which the entry is
    written."""
    name = named(entry_at(opened.schedule, where))[int(opened.expanded.stated[k].rpartition("/")[2])]
    full = opened.graph.operations[opened.expanded.recomputes[k].op].id
    at = f".{full}".find(f".{name}")
    return name, full[: max(at, 0)]
