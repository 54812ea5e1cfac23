"""A chart of overhead against budget: schedules, proven bounds, and budgets that are proven infeasible."""

from __future__ import annotations

from .frontier_summary import Summary
from .plane import BLUE, GREY, INK, RED, Plane, round_numbers

_FINE = 100  # ticks are whole hundredths of a percent


def frontier_plot(summary: Summary) -> str:
    """Return the chart as SVG."""
    base = max(1, summary.baseline_time)

    def share(nbytes: int) -> float:
        return 100 * nbytes / max(1, summary.baseline_peak)

    def over(time: int) -> float:
        return 100 * (time / base - 1)

    solved = [(share(p.budget), p.time, p.lower_bound) for p in summary.points if p.time is not None]
    reached = [(budget, over(time)) for budget, time, _ in solved]
    bound = [(budget, over(proven)) for budget, _, proven in solved if proven is not None]
    floor, smallest = share(summary.floor), share(summary.smallest)
    budgets = [share(point.budget) for point in summary.points]
    left, right = max(0.0, min(floor, *budgets) - 4) if budgets else 0.0, max(100.0, *budgets, 0.0) + 2
    top = max([1.0, *(extra for _, extra in reached)]) * 1.1
    plane = Plane((left, right), (0, top))
    plane.area(_column(left, floor, top), GREY, 0.25, "proven infeasible")
    if smallest > floor:
        plane.area(_column(floor, smallest, top), RED, 0.10, "none found")
    if reached:
        plane.area([*reached, *reversed(bound)], BLUE, 0.12)
        plane.line(bound, INK, "proven bound", dash="4 2", dots=2)
        plane.line(reached, BLUE, "schedules", dots=3.5)
    return plane.svg(
        f"{summary.name}: extra time of a step against its memory budget",
        ("budget, % of the peak without recomputation", f"extra time ({summary.cost} costs)"),
        (
            [at for at in round_numbers(right, 8) if at >= left],
            [at / _FINE for at in round_numbers(top * _FINE, 5)],
        ),
        (lambda at: f"{at:g}%", lambda at: f"{at:g}%"),
    )


def _column(left: float, right: float, top: float) -> list[tuple[float, float]]:
    return [(left, 0), (left, top), (right, top), (right, 0)]
