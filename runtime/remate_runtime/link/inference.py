"""Forward alone: the events of a call after which no backward comes. Needs no torch."""

from __future__ import annotations

from .events import Event, Execution, Free, Linked, RecomputeRun, Run


def forward_alone(linked: Linked) -> tuple[Event, ...]:
    """The events before the forward/backward boundary, with nothing kept for backward and no recomputation for it. What
    the outputs and the buffer updates need stays in its slot; the buffers have not taken their values yet."""
    graph = linked.graph
    live = {*graph.outputs, *(value for update in graph.updates for value in update)}
    found: list[Event] = []
    replayed: set[int] = set()  # random operations of which a later recomputation is needed
    for event in reversed(linked.forward):
        if not isinstance(event, Execution):
            continue
        op = graph.operations[event.op]
        made = [value for value in op.writes if value is not None]
        if not isinstance(event, Run) and live.isdisjoint(made):
            continue
        if free := [value for value in (*op.reads, *made) if value not in live]:
            found.append(Free(tuple(free)))
        live.difference_update(made)
        live.update(op.reads)
        if isinstance(event, RecomputeRun):
            found.append(RecomputeRun(event.op, event.overwrites, op.random and event.op not in replayed))
            replayed.add(event.op)
        elif isinstance(event, Run):
            found.append(Run(event.op, event.overwrites, event.saves_state and event.op in replayed))
        else:
            found.append(event)
    return tuple(found[::-1])
