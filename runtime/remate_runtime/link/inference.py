"""Forward alone: the events of a call without backward. Does not require torch."""

from __future__ import annotations

from .events import Event, Execution, Free, Linked, RecomputeRun, Run


def forward_alone(linked: Linked) -> tuple[Event, ...]:
    """Return the events before the forward/backward boundary that outputs and buffer updates need.

    Nothing is kept or recomputed for backward. What outputs and updates need stays in its slot; the buffers have not
    been updated yet.
    """
    graph = linked.graph
    live = {*graph.outputs, *(value for update in graph.updates for value in update)}
    events: list[Event] = []
    replayed: set[int] = set()  # random operations that a needed recomputation repeats later
    for event in reversed(linked.forward):
        if not isinstance(event, Execution):
            continue
        op = graph.operations[event.op]
        produced = [value for value in op.writes if value is not None]
        if not isinstance(event, Run) and live.isdisjoint(produced):
            continue
        if free := [value for value in (*op.reads, *produced) if value not in live]:
            events.append(Free(tuple(free)))
        live.difference_update(produced)
        live.update(op.reads)
        if isinstance(event, RecomputeRun):
            events.append(RecomputeRun(event.op, event.overwrites, op.random and event.op not in replayed))
            replayed.add(event.op)
        elif isinstance(event, Run):
            events.append(Run(event.op, event.overwrites, event.saves_state and event.op in replayed))
        else:
            events.append(event)
    return tuple(events[::-1])
