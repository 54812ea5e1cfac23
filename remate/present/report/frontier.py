"""The costs of other budgets: overhead against budget and proven bounds of a folder of schedules of one step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from remate_runtime.errors import RemateError
from remate_runtime.format import fingerprint

from ...schedule_tools.analysis import Analysis, open_schedule
from ..frontier_summary import SUMMARY
from ..plane import round_numbers
from ..text import percent, size
from .markup import attribute, table, text

MAX_FILES = 200
_TOP, _LEFT, _WIDTH, _HEIGHT = 8.0, 11.0, 84.0, 78.0  # of the plane, in percent of the drawing
_APART = 11.0, 7.0  # width and height of a label in a narrow window, in percent of the drawing


class FrontierPoint(msgspec.Struct, frozen=True):
    """A schedule. budget, peak: Bytes. overhead, bound: Shares of the baseline's time. bound: None without a proof."""

    file: str
    budget: int
    peak: int
    overhead: float
    bound: float | None
    recomputes: int
    here: bool  # whether it is the schedule of the page


class Frontier(msgspec.Struct, frozen=True):
    """points: By budget. skipped: Files and reasons."""

    points: tuple[FrontierPoint, ...]
    skipped: tuple[tuple[str, str], ...]
    baseline: int  # peak without recomputation


def frontier(opened: Analysis, path: str, folder: str) -> Frontier:
    """Collect the schedules of a step.

    Args:
        opened: A schedule of the step.
        path: Its file.
        folder: The folder whose files `*.json` are read.
    """
    step = fingerprint(opened.schedule)
    points, skipped = list[FrontierPoint](), list[tuple[str, str]]()
    files = sorted(f for f in Path(folder).iterdir() if f.suffix == ".json" and f.name != SUMMARY and f.is_file())
    here = Path(path).resolve()
    for file in files[:MAX_FILES]:
        if file.resolve() == here:
            continue
        try:
            other = open_schedule(str(file))
        except RemateError as error:
            skipped.append((file.name, str(error).splitlines()[0][:200]))
            continue
        if fingerprint(other.schedule) != step:
            skipped.append((file.name, "a schedule of another step"))
            continue
        if other.baseline.time != opened.baseline.time:
            skipped.append((file.name, "planned with other times of the operations"))
            continue
        points.append(_point(other, file.name, False))
    skipped += [(file.name, f"more than {MAX_FILES} files") for file in files[MAX_FILES:]]
    points.append(_point(opened, _beside(here, folder), True))
    return Frontier(tuple(sorted(points, key=lambda p: (p.budget, p.file))), tuple(skipped), opened.baseline.peak)


def _beside(file: Path, folder: str) -> str:
    """Return a file's name, with its folder if it is outside `folder`: two files can have the same name."""
    return file.name if file.parent == Path(folder).resolve() else f"{file.parent.name}/{file.name}"


def _point(opened: Analysis, name: str, here: bool) -> FrontierPoint:
    solve, base = opened.schedule.solve, opened.baseline.time
    bound = solve.lower_bound
    return FrontierPoint(
        name,
        solve.budget,
        opened.timeline.peak,
        opened.timeline.time / base - 1 if base else 0.0,
        bound / base - 1 if bound is not None and base else None,
        len(opened.expanded.recomputes),
        here,
    )


def frontier_section(frontier: Frontier) -> str:
    """Return the chart, the table, and the skipped files."""
    head = ("Schedule", "Budget", "of the baseline", "Peak", "Overhead", "Proven bound", "Recomputes")
    rows = [_row(point, frontier.baseline) for point in frontier.points]
    parts = [_chart(frontier), table("Schedules of this step, by budget", head, rows, right=(1, 2, 3, 4, 5, 6))]
    if frontier.skipped:
        reasons = "".join(f"<li>{text(name)}: {text(why)}</li>" for name, why in frontier.skipped)
        parts.append(f'<p class="aside">Left out:</p><ul class="aside">{reasons}</ul>')
    return "\n".join(parts)


def _row(point: FrontierPoint, baseline: int) -> tuple[str, ...]:
    name = f"<strong>{text(point.file)}</strong> (this one)" if point.here else text(point.file)
    bound = "–" if point.bound is None else f"{point.bound * 100:+.2f}%"
    share = percent(point.budget / baseline, 1) if baseline else "–"
    figures = (
        size(point.budget),
        share,
        size(point.peak),
        f"{point.overhead * 100:+.2f}%",
        bound,
        f"{point.recomputes:,}",
    )
    return name, *figures


def _chart(frontier: Frontier) -> str:
    """Return the chart: overhead on the vertical axis, budget on the horizontal axis."""
    points = frontier.points
    low, high = min(p.budget for p in points), max(max(p.budget for p in points), 1)
    margin = max((high - low) * 0.08, high * 0.02)
    left, right = low - margin, high + 1.5 * margin  # labels are to the right of points
    top = max(*(p.overhead for p in points), *(p.bound or 0.0 for p in points), 0.001) * 1.15

    def x(budget: float) -> str:
        return f"{_LEFT + (budget - left) / (right - left) * _WIDTH:.2f}%"

    def y(overhead: float) -> str:
        return f"{_TOP + (top - max(overhead, 0.0)) / top * _HEIGHT:.2f}%"

    floor = f"{_TOP + _HEIGHT:.2f}%"
    parts: list[str] = []
    for level in round_numbers(top * 10_000, 4):
        share = level / 10_000
        shown = f"{share * 100:.3g}%"
        parts.append(f'<line class="level" x1="{_LEFT}%" x2="{_LEFT + _WIDTH}%" y1="{y(share)}" y2="{y(share)}"/>')
        parts.append(f'<text x="{_LEFT}%" y="{y(share)}" dx="-6" dy="4" text-anchor="end">{shown}</text>')
    for level in _levels(left, right):
        parts.append(f'<text x="{x(level)}" y="{floor}" dy="18" text-anchor="middle">{size(level)}</text>')
    parts += _segments([(x(p.budget), y(p.bound)) for p in points if p.bound is not None], "bound")
    parts += _segments([(x(p.budget), y(p.overhead)) for p in points], "ours")
    for p in points:
        if p.bound is not None:
            parts.append(f'<circle class="bound" cx="{x(p.budget)}" cy="{y(p.bound)}" r="3"/>')
    for p in points:
        kind = "ours here" if p.here else "ours"
        caption = f"{p.file}: budget {size(p.budget)}, overhead {p.overhead * 100:+.2f}%"
        about = f"<title>{attribute(caption)}</title>"
        parts.append(
            f'<circle class="{kind}" cx="{x(p.budget)}" cy="{y(p.overhead)}" r="{6 if p.here else 4}">{about}</circle>'
        )
    placed: list[tuple[float, float]] = []  # in percent of the drawing
    for p in sorted(points, key=lambda p: not p.here):
        at = float(x(p.budget)[:-1]), float(y(p.overhead)[:-1])
        if frontier.baseline and not any(abs(at[0] - a) < _APART[0] and abs(at[1] - b) < _APART[1] for a, b in placed):
            placed.append(at)
            share = percent(p.budget / frontier.baseline, 0)
            parts.append(f'<text x="{x(p.budget)}" y="{y(p.overhead)}" dx="7" dy="-7">{share}</text>')
    label = f"Overhead against budget, {len(points)} schedules; the table below has the figures"
    return f'<svg id="frontier" class="chart" role="img" aria-label="{label}">\n' + "\n".join(parts) + "\n</svg>"


def _levels(left: float, right: float) -> list[int]:
    """Return about four round numbers of bytes between two budgets."""
    step = round_numbers(max(right - left, 1), 4, binary=True)[1]
    return [level for level in range(0, int(right) + 1, step) if level >= left]


def _segments(points: list[tuple[str, str]], kind: str) -> list[str]:
    pairs = pairwise(points)
    return [f'<line class="{kind}" x1="{a}" y1="{b}" x2="{c}" y2="{d}"/>' for (a, b), (c, d) in pairs]
