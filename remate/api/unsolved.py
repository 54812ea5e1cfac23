"""A step as it is, where nothing is solved."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.step import Graph

from ..partition.hierarchy import BlockSpan
from ..strategy import Instance, Solution


def without_reruns(graph: Graph, parts: Sequence[BlockSpan], strategy: str = "keep-all", solver: str = "") -> Solution:
    """The schedule of `graph` without reruns; no bound is proven. strategy, solver: to be written down."""
    base = Instance(graph, parts).baseline
    return Solution(
        reruns=(),
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
