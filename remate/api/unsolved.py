"""A step as it is, where nothing is solved."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.flat_step import Graph

from ..partition.hierarchy import BlockSpan
from ..strategy import Solution, StepInstance


def without_recomputes(
    graph: Graph, parts: Sequence[BlockSpan], strategy: str = "baseline", solver: str = ""
) -> Solution:
    """The schedule of `graph` without recomputation; no bound is proven. strategy, solver: to be written down."""
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
