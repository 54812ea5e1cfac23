"""The simulated memory of a linked schedule as a line over time."""

from __future__ import annotations

from typing import NamedTuple

from remate_runtime.link import Linked, Timeline, steps_with_turn


class Curve(NamedTuple):
    """Memory (bytes) over time (ns): while a step runs and after it. starts[i]: when the step at position i starts."""

    times: list[int]
    memory: list[int]
    starts: list[int]
    end: int


def curve(linked: Linked, timeline: Timeline) -> Curve:
    """The simulated memory of a linked schedule as a line. A step without a cost counts as 1 ns, so that it shows."""
    operations = linked.graph.operations
    costed = timeline.time > 0
    times, memory, starts, now = [0], [0], [], 0
    for step, during, after in zip(steps_with_turn(linked), timeline.during, timeline.after, strict=True):
        starts.append(now)
        took = 0 if step is None or operations[step.op].view else operations[step.op].ns if costed else 1
        times += (now, now + took, now + took)
        memory += (during, during, after)
        now += took
    return Curve(times, memory, starts, now)
