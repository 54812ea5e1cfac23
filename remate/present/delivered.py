"""The peak of a step for each way to deliver gradients, in words."""

from __future__ import annotations

from collections.abc import Iterator

from remate_runtime.format import GRADIENTS
from remate_runtime.link import simulate

from ..schedule_tools.analysis import Analysis
from ..schedule_tools.device_memory import grad_bytes
from .text import size


def delivered_rows(opened: Analysis) -> Iterator[tuple[str, int, int]]:
    """Yield a label and the peaks of the schedule and of the baseline, in bytes, for each way."""
    for kind in GRADIENTS:
        planned = " (planned for)" if kind == opened.graph.delivered else ""
        scheduled, baseline = simulate(opened.linked, kind).peak, simulate(opened.without_recomputes, kind).peak
        yield f"  gradients {kind}{planned}", scheduled, baseline + opened.counted_parameters


def delivered_line(opened: Analysis) -> str:
    """Return the peaks of the schedule in one line. Accumulated gradients are in `.grad`, beside the step."""
    peaks: list[str] = []
    for kind in GRADIENTS:
        planned = " (planned for)" if kind == opened.graph.delivered else ""
        beside = f" beside {size(grad_bytes(opened.schedule.model))} of .grad" if kind == "accumulated" else ""
        peaks.append(f"{kind} {size(simulate(opened.linked, kind).peak)}{beside}{planned}")
    return f"peak by delivery of gradients: {', '.join(peaks)}"
