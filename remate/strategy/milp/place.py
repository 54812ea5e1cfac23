"""Converts variables of a formulation to recomputations, each just before its first actual need."""

from __future__ import annotations

from collections.abc import Mapping

from remate_runtime.flat_step import FlatRecompute

from ..problem import Problem
from .windows import Key, RecomputeWindows


def place(problem: Problem, windows: RecomputeWindows, chosen: Mapping[Key, bool]) -> list[FlatRecompute]:
    """Return recomputations of a solution, in step order, without those that are not needed."""
    by_stage: dict[int, list[tuple[int, int]]] = {}
    for f, k, anchor in windows.slots:
        if chosen["recompute", f, k]:
            by_stage.setdefault(k, []).append((f, anchor))
    recomputes: list[FlatRecompute] = []
    for k, operations in by_stage.items():
        first: dict[int, int] = {}
        for f, anchor in sorted(operations, reverse=True):
            point = _first_need(problem, windows, chosen, f, k, first)
            if point is None and _held_later(problem, windows, chosen, f, k):
                point = anchor
            if point is not None:
                first[f] = point
        recomputes.extend(FlatRecompute(f, point) for f, point in first.items())
    return sorted(recomputes, key=lambda r: (r.before, r.op))


def _first_need(
    problem: Problem, windows: RecomputeWindows, chosen: Mapping[Key, bool], f: int, k: int, first: Mapping[int, int]
) -> int | None:
    points = [
        i if i >= problem.backward_start else first[i]
        for s in problem.writes[f]
        if not chosen.get(("hold", s, k), True)
        for i in problem.readers[s]
        if (i in first if i < problem.backward_start else windows.stage[i - problem.backward_start] == k)
    ]
    return min(points, default=None)


def _held_later(problem: Problem, windows: RecomputeWindows, chosen: Mapping[Key, bool], f: int, k: int) -> bool:
    """Return whether a later stage holds results of this recomputation."""
    for s in problem.writes[f]:
        later = [n for n in windows.stages.get(s, ()) if n > k]
        if later and chosen["hold", s, later[0]] and not chosen.get(("hold", s, k), True):
            return True
    return False
