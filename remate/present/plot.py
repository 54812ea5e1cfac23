"""Memory over the step as a picture: the schedule against keep-all, the budget, the peak, the turn to backward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from remate_runtime.errors import RemateError
from remate_runtime.link import Linked, Timeline, steps_with_turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..inspect.analysis import Analysis

_FORMATS = (".png", ".svg", ".pdf")
_INK, _GREY, _BLUE, _RED = "#1f2328", "#8b949e", "#1f6feb", "#cf222e"
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))


class PlotError(RemateError):
    """The plot cannot be drawn."""


class Curve(NamedTuple):
    """Memory (bytes) over time (ns): while a step runs and after it. starts[i]: when the step at position i starts."""

    times: list[int]
    memory: list[int]
    starts: list[int]
    end: int


def plot_memory(opened: Analysis, path: str) -> None:
    """Draw to `path`; its suffix says the format. Raises PlotError for another format, or without matplotlib."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise PlotError(f"{path}: a plot is written as one of {', '.join(_FORMATS)}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("plots need matplotlib\n  hint: pip install 'remate[plot]'") from None
    figure = Figure(figsize=(9, 4.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, opened)
    with rc_context({"svg.hashsalt": "remate", "svg.fonttype": "path"}):  # the same file each time
        figure.savefig(path, metadata={"Date": None} if path.lower().endswith(".svg") else None)


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


def _draw(axes: Axes, opened: Analysis) -> None:
    timeline, keep_all, budget = opened.timeline, opened.keep_all, opened.schedule.solve.budget
    ours, base = curve(opened.linked, timeline), curve(opened.without_reruns, keep_all)
    top, span = max(timeline.peak, keep_all.peak, budget), max(ours.end, base.end, 1)
    per_size, size_unit = next((s for s in _SIZES if top >= s[0]), _SIZES[-1])
    per_time, time_unit = next((t for t in _TIMES if span >= t[0]), _TIMES[-1])

    def line(made: Curve) -> tuple[list[float], list[float]]:
        return [t / per_time for t in made.times], [m / per_size for m in made.memory]

    axes.fill_between(*line(base), color=_GREY, alpha=0.18, linewidth=0)
    axes.plot(*line(base), color=_GREY, linewidth=1, label="without reruns (keep-all)")
    axes.fill_between(*line(ours), color=_BLUE, alpha=0.15, linewidth=0)
    axes.plot(*line(ours), color=_BLUE, linewidth=1.4, label="this schedule")
    axes.axhline(budget / per_size, color=_RED, linewidth=1.2, linestyle=(0, (5, 3)), label="budget")
    _mark_peak(
        axes, ours.starts[timeline.peak_at] / per_time if ours.starts else 0, timeline.peak / per_size, size_unit
    )
    _mark_turn(axes, ours.starts[timeline.turn] / per_time if ours.starts else 0)
    axes.set_title(f"{opened.schedule.name}: memory over one step (forward and backward)", loc="left", color=_INK)
    unit = time_unit if timeline.time else "steps"
    axes.set_xlabel(f"predicted time, {unit}")
    axes.set_ylabel(f"memory beyond parameters,\nbuffers and inputs, {size_unit}")
    axes.set_ylim(0, top / per_size * 1.16)
    axes.set_xlim(0, span / per_time)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", ncols=4, frameon=False, fontsize=9, bbox_to_anchor=(-0.01, -0.16))


def _mark_peak(axes: Axes, at: float, peak: float, unit: str) -> None:
    axes.plot([at], [peak], "o", color=_INK, markersize=5, zorder=5, label=f"peak, {peak:.4g} {unit}")


def _mark_turn(axes: Axes, at: float) -> None:
    axes.axvline(at, color=_INK, linewidth=0.8, linestyle=":")
    height = axes.get_xaxis_transform()
    axes.text(at, 0.985, "forward  ", ha="right", va="top", fontsize=9, color=_INK, transform=height)
    axes.text(at, 0.985, "  backward", ha="left", va="top", fontsize=9, color=_INK, transform=height)
