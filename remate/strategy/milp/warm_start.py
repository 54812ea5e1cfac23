"""Known reruns as a first solution of any formulation."""

from __future__ import annotations

from collections.abc import Iterable

from remate_runtime.step import FlatRerun

from ..problem import Problem
from .windows import Key, RerunWindows


def warm_start(problem: Problem, windows: RerunWindows, reruns: Iterable[FlatRerun]) -> dict[Key, bool]:
    """Values of all variables for these reruns: what they rerun, in the stages where the formulation allows it, and
    what must then be held. Memory may not fit: the solver then drops or repairs it."""
    wanted = {
        (r.op, windows.stage[r.before - problem.backward_start]) for r in reruns if r.before >= problem.backward_start
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
    return {**held, **{("rerun", f, k): (f, k) in again for f, k in windows.position}}
