"""What the charts of the page show, in nanoseconds and bytes."""

from __future__ import annotations

import msgspec

from remate_runtime.link import Computation, Rerun

from ...inspect.analysis import Analysis
from ...measure.memory_trace import MemoryTrace
from ..curve import Curve, curve


class Stretch(msgspec.Struct, frozen=True):
    """Time in which steps of one kind run: forward | backward | rerun."""

    kind: str
    start: int
    end: int


class Scene(msgspec.Struct, frozen=True):
    """span: ns that the charts cover. top: bytes. ours, keep_all: predicted. measured: (times, bytes), or empty.

    turn, peak_at: ns at which backward starts and the peak is reached first.
    """

    span: int
    top: int
    budget: int
    peak: int
    turn: int
    peak_at: int
    ours: Curve
    keep_all: Curve
    measured: tuple[list[int], list[int]]
    stretches: tuple[Stretch, ...]


def scene(opened: Analysis, trace: MemoryTrace | None) -> Scene:
    """trace: measured curve to lay beside the predicted one; its forward and its backward are stretched to fit."""
    timeline, budget = opened.timeline, opened.schedule.solve.budget
    ours = curve(opened.linked, timeline)
    base = curve(opened.without_reruns, opened.keep_all)
    turn = ours.starts[timeline.turn]
    measured = _stretched(trace, turn, ours.end) if trace is not None else ([], [])
    top = max(timeline.peak, opened.keep_all.peak, budget, *measured[1], 1)
    peak_at = ours.starts[timeline.peak_at]
    return Scene(
        span=max(ours.end, base.end, 1),
        top=top,
        budget=budget,
        peak=timeline.peak,
        turn=turn,
        peak_at=peak_at,
        ours=ours,
        keep_all=base,
        measured=measured,
        stretches=tuple(_stretches(opened, ours)),
    )


def _stretches(opened: Analysis, made: Curve) -> list[Stretch]:
    found = []
    ends = [*made.starts[1:], made.end]
    for at, event in enumerate(opened.linked.events):
        if isinstance(event, Computation) and ends[at] > made.starts[at]:
            kind = "rerun" if isinstance(event, Rerun) else "forward" if at < opened.timeline.turn else "backward"
            found.append(Stretch(kind, made.starts[at], ends[at]))
    return found


def _stretched(trace: MemoryTrace, turn: int, end: int) -> tuple[list[int], list[int]]:
    """The measured curve as a staircase over predicted time: forward onto forward, backward onto backward."""
    last = max(trace.times[-1], trace.turn)

    def place(time: int) -> int:
        if time <= trace.turn:
            return time * turn // max(trace.turn, 1)
        return turn + (time - trace.turn) * (end - turn) // max(last - trace.turn, 1)

    times, levels = [0], [0]
    for time, level in zip(trace.times, trace.bytes, strict=True):
        times += (place(time), place(time))
        levels += (levels[-1], level)
    return times, levels
