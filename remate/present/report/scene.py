"""The data of the page's charts, in nanoseconds and bytes."""

from __future__ import annotations

import msgspec

from remate_runtime.display import Curve, curve
from remate_runtime.link import Computation

from ...schedule_tools.analysis import Analysis, phase
from ...step_measurement.memory_trace import MemoryTrace


class Stretch(msgspec.Struct, frozen=True):
    """A period in which operations of one kind run: forward | backward | recompute."""

    kind: str
    start: int
    end: int


class Scene(msgspec.Struct, frozen=True):
    """The data of the charts.

    span: ns of the horizontal axis. top: Most bytes of all curves. ours, baseline: Predicted curves. measured: Times
    and bytes of the measured curve, or empty. backward_start: ns at which backward starts. peak_at: ns of the first
    peak.
    """

    span: int
    top: int
    budget: int
    peak: int
    backward_start: int
    peak_at: int
    ours: Curve
    baseline: Curve
    measured: tuple[list[int], list[int]]
    stretches: tuple[Stretch, ...]


def scene(opened: Analysis, trace: MemoryTrace | None) -> Scene:
    """Return the data of the charts.

    Args:
        opened: The schedule.
        trace: A measured curve. Its forward and its backward are stretched to the predicted times.
    """
    timeline, budget = opened.timeline, opened.schedule.solve.budget
    ours = curve(opened.linked, timeline)
    base = curve(opened.without_recomputes, opened.baseline)
    backward_start = ours.starts[timeline.backward_start]
    measured = _stretched(trace, backward_start, ours.end) if trace is not None else (list[int](), list[int]())
    top = max(timeline.peak, opened.baseline.peak, budget, *measured[1], 1)
    peak_at = ours.starts[timeline.peak_at]
    return Scene(
        span=max(ours.end, base.end, 1),
        top=top,
        budget=budget,
        peak=timeline.peak,
        backward_start=backward_start,
        peak_at=peak_at,
        ours=ours,
        baseline=base,
        measured=measured,
        stretches=tuple(_stretches(opened, ours)),
    )


def _stretches(opened: Analysis, memory: Curve) -> list[Stretch]:
    stretches: list[Stretch] = []
    ends = [*memory.starts[1:], memory.end]
    for at, event in enumerate(opened.linked.events):
        if isinstance(event, Computation) and ends[at] > memory.starts[at]:
            stretches.append(Stretch(phase(opened, at), memory.starts[at], ends[at]))
    return stretches


def _stretched(trace: MemoryTrace, backward_start: int, end: int) -> tuple[list[int], list[int]]:
    """Return the measured curve as a staircase over predicted time, forward and backward separately."""
    last = max(trace.times[-1], trace.backward_start)

    def place(time: int) -> int:
        if time <= trace.backward_start:
            return time * backward_start // max(trace.backward_start, 1)
        return backward_start + (time - trace.backward_start) * (end - backward_start) // max(
            last - trace.backward_start, 1
        )

    times, levels = [0], [0]
    for time, level in zip(trace.times, trace.bytes, strict=True):
        times += (place(time), place(time))
        levels += (levels[-1], level)
    return times, levels
