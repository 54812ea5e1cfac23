"""The neighbourhood of a solution, as windows of a model that counts its memory exactly."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem import Problem
from .windows import Key, RecomputeWindows, recompute_windows


def refined(problem: Problem, windows: RecomputeWindows, chosen: Mapping[Key, bool]) -> RecomputeWindows:
    """Return windows for the neighbourhood of a solution: its recomputations, and others that move none of these
    earlier.

    The windows of a model reach over all needs that *may* arise. Once a solution is known, needs that did not arise can
    be left out. Then storages that the solution holds are counted exactly, and memory that the first model reserved is
    free.
    """
    keep = {(f, k) for f, k in windows.position if chosen["recompute", f, k]}
    tight = recompute_windows(problem, windows.stage, _allowed(keep))
    anchor = {(f, k): at for f, k, at in tight.slots}
    loose = {(f, k): at for f, k, at in windows.slots}
    extra = {
        (g, k)
        for (g, k), at in loose.items()
        if (g, k) not in keep
        and all(
            anchor.get((problem.producer[u], k), -1) <= at
            for u in problem.reads[g]
            if (problem.producer[u], k) in anchor
        )
    }
    return recompute_windows(problem, windows.stage, _allowed(keep | extra))


def _allowed(pairs: set[tuple[int, int]]) -> dict[int, set[int]]:
    allowed: dict[int, set[int]] = {}
    for f, k in pairs:
        allowed.setdefault(f, set()).add(k)
    return allowed
