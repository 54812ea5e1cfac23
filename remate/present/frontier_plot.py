"""Overhead against budget as a picture: what was found, the proven bound beneath, and where nothing can be."""

from __future__ import annotations

from pathlib import Path

from .frontier_summary import Summary
from .plot import PlotError

_INK, _GREY, _BLUE, _RED = "#1f2328", "#8b949e", "#1f6feb", "#cf222e"


def plot_frontier(summary: Summary, path: str) -> None:
    """Draw to `path`; its suffix says the format (.svg, .png, .pdf). Raises PlotError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("plots need matplotlib\n  hint: pip install 'remate[plot]'") from None
    top, base = max(1, summary.baseline_peak), max(1, summary.baseline_time)

    def share(nbytes: int) -> float:
        return 100 * nbytes / top

    solved = [p for p in summary.points if p.time is not None and p.lower_bound is not None]
    budgets = [share(p.budget) for p in solved]
    figure = Figure(figsize=(8, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    left = max(0.0, min([share(summary.floor), *(share(p.budget) for p in summary.points)]) - 4)
    axes.axvspan(left, share(summary.floor), color=_GREY, alpha=0.25, linewidth=0, label="proven infeasible")
    if summary.smallest > summary.floor:
        axes.axvspan(
            share(summary.floor), share(summary.smallest), color=_RED, alpha=0.10, linewidth=0, label="none found"
        )
    if solved:
        found = [100 * ((p.time or 0) / base - 1) for p in solved]
        bound = [100 * ((p.lower_bound or 0) / base - 1) for p in solved]
        axes.fill_between(budgets, bound, found, color=_BLUE, alpha=0.12, linewidth=0)
        axes.plot(budgets, bound, color=_INK, linewidth=1, linestyle=(0, (4, 2)), marker=".", label="proven bound")
        axes.plot(budgets, found, color=_BLUE, linewidth=1.6, marker="o", markersize=4, label="schedules")
    axes.set_title(f"{summary.name}: extra time of a step against its memory budget", loc="left", color=_INK)
    axes.set_xlabel("budget, % of the peak without reruns")
    axes.set_ylabel(f"extra time, % ({summary.cost} costs)")
    axes.set_xlim(left, max([100.0, *budgets]) + 2)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9)
    with rc_context({"svg.hashsalt": "remate", "svg.fonttype": "path"}):  # the same file each time
        figure.savefig(path, metadata={"Date": None} if Path(path).suffix.lower() == ".svg" else None)
