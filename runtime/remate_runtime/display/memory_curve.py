"""The simulated memory of a linked schedule as a line over time."""

from __future__ import annotations

from typing import NamedTuple

from ..link import Computation, Linked, Timeline


class Curve(NamedTuple):
    """Memory (bytes) over time (ns): during each event and after it. starts[i]: when the event at position i starts."""

    times: list[int]
    memory: list[int]
    starts: list[int]
    end: int


def curve(linked: Linked, timeline: Timeline) -> Curve:
    """The simulated memory of a linked schedule as a line. In a step without costs each run counts as 1 ns, to be
    visible."""
    operations = linked.graph.operations
    costed = timeline.time > 0
    times, memory, now = [0], [0], 0
    starts: list[int] = []
    ends = None if timeline.clock is None else [*timeline.clock.starts[1:], timeline.time]
    for at, (event, during, after) in enumerate(zip(linked.events, timeline.during, timeline.after, strict=True)):
        starts.append(now)
        took = 0
        if costed and ends is not None:  # with what the step waits for paged values
            took = ends[at] - now
        elif isinstance(event, Computation):
            took = operations[event.op].ns if costed else 1
        times += (now, now + took, now + took)
        memory += (during, during, after)
        now += took
    return Curve(times, memory, starts, now)
