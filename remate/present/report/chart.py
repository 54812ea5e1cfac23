"""The charts as SVG without scripts. Curves stretch with the page; letters do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remate_runtime.display import thin

from ..plane import round_numbers
from ..text import duration, escape, size
from .scene import Scene, Stretch

WIDTH, HEIGHT = 10_000, 1_000  # units of the stretched drawings
_BUCKETS = 600
_HEADROOM = 1.12
_LANES = {"forward": 320, "backward": 320, "recompute": 680}  # upper edges; the script draws names of blocks above
_LANE = 290  # height


def memory_chart(scene: Scene) -> str:
    """Return the chart of memory: baseline, schedule, measurement, budget, peak, forward/backward boundary."""
    limit = scene.top * _HEADROOM
    title = (
        f"Memory over the step: peak {size(scene.peak)} of a budget of {size(scene.budget)}, "
        f"without recomputation {size(max(scene.baseline.memory))}"
    )
    curves = [
        _path("base", _line(scene.baseline.times, scene.baseline.memory, scene.span, limit, close=True)),
        _path("ours", _line(scene.ours.times, scene.ours.memory, scene.span, limit, close=True)),
    ]
    if scene.measured[0]:
        curves.append(_path("measured", _line(*scene.measured, scene.span, limit)))
    backward_start, peak = _percent(scene.backward_start, scene.span), _percent(scene.peak_at, scene.span)
    budget, top = _percent(limit - scene.budget, limit), _percent(limit - scene.peak, limit)
    return "\n".join(
        [
            f'<svg id="memory" class="chart" role="img" aria-label="{escape(title)}">',
            *_levels(limit),
            f'<svg class="plane" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">',
            *curves,
            "</svg>",
            f'<line class="budget" x1="0" x2="100%" y1="{budget}" y2="{budget}"/>',
            f'<g class="backward_start"><line x1="{backward_start}" x2="{backward_start}" y1="0" y2="100%"/>',
            _text(backward_start, "13", "forward", "end", -6)
            + _text(backward_start, "13", "backward", "start", 6)
            + "</g>",
            f'<circle class="peak" cx="{peak}" cy="{top}" r="5"/>',
            '<g class="cursor" visibility="hidden"><line x1="0" x2="0" y1="0" y2="100%"/>'
            '<circle cx="0" cy="0" r="5"/></g>',
            "</svg>",
        ]
    )


def lanes(scene: Scene) -> str:
    """Return the chart of the times at which forward, backward and recomputations run."""
    paths = [_path(kind, _boxes(scene.stretches, kind, scene.span)) for kind in _LANES]
    return "\n".join(
        [
            '<svg id="lanes" class="lanes" role="img" aria-label="Operations above, recomputations below, over time">',
            f'<svg class="plane" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">',
            *paths,
            '</svg><g class="blocks"></g><g class="cursor" visibility="hidden">'
            '<line x1="0" x2="0" y1="0" y2="100%"/></g></svg>',
        ]
    )


def time_axis(span: int, costed: bool) -> str:
    """Return a separate drawing of labels at round times."""
    marks = [_text(_percent(at, span), "14", _moment(at, costed), _anchor(at, span)) for at in round_numbers(span, 5)]
    return f'<svg id="axis" class="axis" aria-hidden="true">{"".join(marks)}</svg>'


def _levels(limit: float) -> Iterable[str]:
    for level in round_numbers(limit * 0.92, 5, binary=True)[1:]:
        y = _percent(limit - level, limit)
        yield f'<line class="level" x1="0" x2="100%" y1="{y}" y2="{y}"/>{_text("0", y, size(level), "start", 2, -4)}'


def _line(times: Sequence[int], levels: Sequence[int], span: int, limit: float, close: bool = False) -> str:
    """Return a path without repeated points."""
    path: list[str] = []
    points = zip(*thin(times, levels, _BUCKETS), strict=True)
    for time, level in points:
        point = f"{time * WIDTH // span} {round((limit - level) / limit * HEIGHT)}"
        if not path or path[-1] != point:
            path.append(point)
    end = times[-1] * WIDTH // span if times else 0
    return "M" + "L".join(path) + (f"L{end} {HEIGHT}L0 {HEIGHT}Z" if close else "")


def _boxes(stretches: Iterable[Stretch], kind: str, span: int) -> str:
    """Return the boxes of a kind. Boxes that are too narrow to distinguish are merged."""
    top = _LANES[kind]
    merged: list[list[int]] = []
    for stretch in stretches:
        if stretch.kind != kind:
            continue
        start, end = stretch.start * WIDTH // span, max(stretch.end * WIDTH // span, stretch.start * WIDTH // span + 2)
        if merged and start - merged[-1][1] < 3 and (end - start < 12 or start < merged[-1][1]):
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return "".join(f"M{a} {top}h{b - a - (3 if b - a > 12 else 0)}v{_LANE}H{a}z" for a, b in merged)


def _path(kind: str, line: str) -> str:
    return f'<path class="{kind}" d="{line}"/>'


def _text(x: str, y: str, shown: str, anchor: str, dx: int = 0, dy: int = 0) -> str:
    return f'<text x="{x}" y="{y}" dx="{dx}" dy="{dy}" text-anchor="{anchor}">{escape(shown)}</text>'


def _moment(at: int, costed: bool) -> str:
    return "0" if at == 0 else duration(at) if costed else f"step {at:,}"


def _anchor(at: int, span: int) -> str:
    return "start" if at < span * 0.05 else "end" if at > span * 0.95 else "middle"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole * 100:.3f}%" if whole else "0%"
