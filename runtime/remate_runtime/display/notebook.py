"""A schedule in a notebook: its figures, and memory over the step as a drawing without scripts or foreign files."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ..errors import RemateError
from ..flat_step import expand
from ..format.summary import clipped, facts
from ..link import link, simulate
from ..support.quantities import duration, size
from .memory_curve import Curve, curve
from .thinning import thin

if TYPE_CHECKING:
    from ..format.schedule import Schedule

_WIDTH, _HEIGHT, _TOP = 640, 180, 22  # of the drawing; above the plane: words
_BUCKETS = 160
_OPERATIONS = 50_000  # beyond that, a notebook would wait for the curve


def schedule_html(schedule: Schedule) -> str:
    """HTML for a cell's output: the rows of `repr`, and the curve of a schedule whose step can be linked."""
    rows = "".join(
        f'<tr><th style="text-align:left;font-weight:500;padding-right:1em">{_escape(name)}</th>'
        f'<td style="text-align:left">{_escape(text)}</td></tr>'
        for name, text in facts(schedule)
    )
    table = f'<table style="border-collapse:collapse">{rows}</table>'
    return f"<div><strong>{_escape(clipped(schedule.name))}</strong>{table}{_drawing(schedule)}</div>"


def _drawing(schedule: Schedule) -> str:
    try:
        expanded = expand(schedule)
        if len(expanded.graph.operations) > _OPERATIONS:
            return ""
        linked, base = link(expanded.graph, expanded.recomputes, expanded.pages), link(expanded.graph)
        timeline, without = simulate(linked), simulate(base)
    except RemateError:  # a schedule of invalid parts still has a summary
        return ""
    ours, other = curve(linked, timeline), curve(base, without)
    budget = schedule.solve.budget
    top, span = max(timeline.peak, without.peak, budget, 1), max(ours.end, other.end, 1)

    def y(nbytes: float) -> float:
        return _TOP + (1 - nbytes / top) * (_HEIGHT - _TOP)

    def path(line: Curve) -> str:
        points = zip(*thin(line.times, line.memory, _BUCKETS), strict=True)
        return "M" + "L".join(f"{t / span * _WIDTH:.1f} {y(m):.1f}" for t, m in points)

    turn = ours.starts[timeline.backward_start] / span * _WIDTH if ours.starts else 0
    took = duration(timeline.time) if timeline.time else "operations in order"
    label = f"memory over the step: peak {size(timeline.peak)}, without recomputation {size(without.peak)}"
    style = f'width="{_WIDTH}" height="{_HEIGHT + 18}" viewBox="0 0 {_WIDTH} {_HEIGHT + 18}" style="max-width:100%"'
    grey, blue, red = "#8b949e", "#1f6feb", "#cf222e"
    return (
        f'<svg {style} font-size="12" fill="currentColor" role="img" aria-label="{_escape(label)}"><path '
        f'd="{path(other)}V{_HEIGHT}H0Z" fill="{grey}" fill-opacity=".15" stroke="{grey}"/><path '
        f'd="{path(ours)}V{_HEIGHT}H0Z" fill="{blue}" fill-opacity=".18" stroke="{blue}"/><path d="M0 '
        f'{y(budget):.1f}H{_WIDTH}" stroke="{red}" stroke-dasharray="5 3"/><path d="M{turn:.1f} {_TOP}V{_HEIGHT}" '
        f'stroke="currentColor" stroke-dasharray="1.5 3"/><text x="0" y="12"><tspan fill="{blue}">this schedule, peak '
        f'{size(timeline.peak)}</tspan> · <tspan fill="{grey}">baseline {size(without.peak)}</tspan> · <tspan '
        f'fill="{red}">budget {size(budget)}</tspan></text><text x="0" y="{_HEIGHT + 14}">0</text><text x="{turn:.1f}" '
        f'y="{_HEIGHT + 14}" text-anchor="middle">backward</text><text x="{_WIDTH}" y="{_HEIGHT + 14}" '
        f'text-anchor="end">{took}</text></svg>'
    )


def _escape(text: str) -> str:
    return html.escape(text)
