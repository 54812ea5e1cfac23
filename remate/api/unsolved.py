"""The solution without recomputation, for steps that are not solved."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.flat_step import Graph

from ..partition.hierarchy import BlockSpan
from ..strategy import Solution, StepInstance


def without_recomputes(
    graph: Graph, parts: Sequence[BlockSpan], strategy: str = "baseline", solver: str = ""
) -> Solution:
    """The solution of `graph` without recomputation and without a bound. strategy, solver: names to record."""
    base = StepInstance(graph, parts).baseline
    return Solution(
        recomputes=(),
        peak=base.peak,
        time=base.time,
        baseline_peak=base.peak,
        baseline_time=base.time,
        lower_bound=0,
        gap=0.0,
        stopped_by="edited",
        strategy=strategy,
        solver=solver,
    )
