"""Known recomputations as a first solution of a formulation."""

from __future__ import annotations

from collections.abc import Iterable

from remate_runtime.flat_step import FlatRecompute

from ..problem import Problem
from .windows import Key, RecomputeWindows


def warm_start(problem: Problem, windows: RecomputeWindows, recomputes: Iterable[FlatRecompute]) -> dict[Key, bool]:
    """Return values of all variables for these recomputations: runs in allowed stages, and storages that must be held
    for them.

    The solution may exceed the memory limit. Then the solver drops or repairs it.
    """
    wanted = {
        (r.op, windows.stage[r.before - problem.backward_start])
        for r in recomputes
        if r.before >= problem.backward_start
    }
    again = {pair for pair in wanted if pair in windows.position}
    held: dict[Key, bool] = {}
    for s, stages in windows.stages.items():
        f = problem.producer[s]
        later = False
        for k in reversed(stages):
            needed = (s, k) in windows.read or any(
                i < problem.backward_start and (i, k) in again for i in problem.readers[s]
            )
            later = (needed or later) and (f, k) not in again
            held["hold", s, k] = later
    return {**held, **{("recompute", f, k): (f, k) in again for f, k in windows.position}}
