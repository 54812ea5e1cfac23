"""A solution with pages, with what is proven about it."""

from __future__ import annotations

from msgspec.structs import replace

from ..solve import Solution


def proven(solution: Solution, bound: int) -> Solution:
    """Return a solution with a bound of all schedules of its kind, in ns, and the gap that it leaves."""
    gap = max(0.0, (solution.time - bound) / max(1, solution.baseline_time))
    stopped = "heuristic" if solution.stopped_by in ("optimal", "gap") else solution.stopped_by
    return replace(solution, lower_bound=bound, gap=gap, stopped_by="optimal" if gap <= 1e-9 else stopped)
