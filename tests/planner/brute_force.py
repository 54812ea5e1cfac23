"""The truth for tiny steps: every choice of recomputations, one at most per forward operation, judged by the
simulator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from remate_runtime.flat_step.graph import FlatRecompute, Graph
from remate_runtime.link.linker import link
from remate_runtime.link.simulator import simulate


def schedules(graph: Graph) -> Iterator[tuple[int, int]]:
    """(peak, time) of every schedule in which each forward operation is recomputed at most once, before some backward
    one."""
    points = [None, *range(graph.backward_start, len(graph.operations))]
    for choice in product(points, repeat=graph.backward_start):
        recomputes = [FlatRecompute(op, before) for op, before in enumerate(choice) if before is not None]
        timeline = simulate(link(graph, recomputes))
        yield timeline.peak, timeline.time


def fastest(graph: Graph, budgets: list[int]) -> tuple[list[int | None], int]:
    """Least time within each budget (None: infeasible), and the least peak of all."""
    best: list[int | None] = [None] * len(budgets)
    smallest = 1 << 60
    for peak, time in schedules(graph):
        smallest = min(smallest, peak)
        for n, budget in enumerate(budgets):
            old = best[n]
            if peak <= budget and (old is None or time < old):
                best[n] = time
    return best, smallest
