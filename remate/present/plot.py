"""A chart of memory over the step: schedule, baseline, budget, peak, and the forward/backward boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remate_runtime.display import Curve, curve, thin

from .plane import BLUE, GREY, INK, RED, Plane, round_numbers
from .text import duration, size

if TYPE_CHECKING:
    from ..schedule_tools.analysis import Analysis

_BUCKETS = 800  # of a curve, with at most four points each; about the number of pixel columns


def memory_plot(opened: Analysis) -> str:
    """Return the chart as SVG."""
    timeline, baseline, budget = opened.timeline, opened.baseline, opened.schedule.solve.budget
    ours, base = curve(opened.linked, timeline), curve(opened.without_recomputes, baseline)
    top, span = max(timeline.peak, baseline.peak, budget, 1), max(ours.end, base.end, 1)
    plane = Plane((0, span), (0, top * 1.14))
    for memory, color, opacity, label in (
        (base, GREY, 0.18, "without recomputation (baseline)"),
        (ours, BLUE, 0.15, "this schedule"),
    ):
        points = _points(memory)
        plane.area([(0, 0), *points, (memory.end, 0)], color, opacity)
        plane.line(points, color, label)
    plane.line([(0, budget), (span, budget)], RED, "budget", dash="5 3")
    if ours.starts:
        plane.dot((ours.starts[timeline.peak_at], timeline.peak), INK, f"peak, {size(timeline.peak)}")
        plane.divide(ours.starts[timeline.backward_start], "forward", "backward")
    costed = timeline.time > 0
    return plane.svg(
        f"{opened.schedule.name}: memory over one step (forward and backward)",
        (
            "predicted time" if costed else "operations in order",
            "memory beyond parameters, buffers and inputs",
        ),
        (round_numbers(span, 6), round_numbers(top, 5, binary=True)),
        (lambda at: duration(at) if costed and at else f"{at:,.0f}", lambda at: size(int(at)) if at else "0"),
    )


def _points(line: Curve) -> list[tuple[float, float]]:
    times, memory = thin(line.times, line.memory, _BUCKETS)
    return list(zip(times, memory, strict=True))
