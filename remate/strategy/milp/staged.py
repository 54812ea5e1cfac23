"""The staged strategy: a forward operation may run again in several stages, and what it makes be held between them.

Needed where boundaries are large, cheap to make again, or too many to keep: convolutional nets, U-Nets, low budgets.
The model grows with the number of stages above its own in which an operation may rerun, so it suits hundreds of
operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..problem import Problem
from .flat import allowed_stages
from .segments import segments
from .windows import Key, RerunWindows, windows


def staged_windows(problem: Problem, length: int, above: int) -> RerunWindows:
    """RerunWindows in which every operation may rerun up to `above` stages before the first that needs it."""
    cut = segments(problem, length)
    return windows(problem, cut.stage, allowed_stages(problem, cut, above))


def refined(problem: Problem, w: RerunWindows, chosen: Mapping[Key, bool]) -> RerunWindows:
    """RerunWindows for the neighbourhood of a solution: its reruns, and those others that move none of its reruns earlier.

    RerunWindows of a model reach over all needs that *may* arise. Once a solution is known, needs that did not arise can be
    left out: what the solution holds is then counted exactly, and memory that the first model set aside is free to use.
    """
    keep = {(f, k) for f, k in w.position if chosen["rerun", f, k]}
    tight = windows(problem, w.stage, _allowed(keep))
    anchor = {(f, k): at for f, k, at in tight.slots}
    loose = {(f, k): at for f, k, at in w.slots}
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
    return windows(problem, w.stage, _allowed(keep | extra))


def _allowed(pairs: set[tuple[int, int]]) -> dict[int, set[int]]:
    allowed: dict[int, set[int]] = {}
    for f, k in pairs:
        allowed.setdefault(f, set()).add(k)
    return allowed
