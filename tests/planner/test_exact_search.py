"""The exact search over states: reaching a deadline is not a proof, and a complete search that fails is one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from remate.errors import InfeasibleError
from remate.strategy import Candidate, Request, StepInstance, solve
from remate.strategy.base import Context
from remate.strategy.deadline import Deadline
from remate.strategy.states.exact import estimate
from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import link, simulate

from .brute_force import fastest
from .exact_optimum import ExactOptimum
from .strategy_graphs import random_graph
from .tiny_steps import tiny_step


def test_what_a_deadline_ends_is_not_kept() -> None:
    graph = random_graph(4, 4)
    budget = int(0.9 * simulate(link(graph)).peak)
    (best,) = fastest(graph, [budget])[0]
    instance, deadline = StepInstance(graph), Deadline()
    assert best is not None
    assert best > instance.baseline.time
    request = Request(budget, 0.0)
    deadline.interrupt()
    assert estimate(instance, request, Context(deadline, instance.baseline.time)) < best
    assert estimate(instance, request, Context(Deadline(), instance.baseline.time)) == best


class Judged(StepInstance):
    """A step that notes whose schedules are judged."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.strategies: set[str] = set()

    def judged(self, recomputes: Sequence[FlatRecompute], strategy: str, solver: str = "none") -> Candidate:
        self.strategies.add(strategy)
        return super().judged(recomputes, strategy, solver)


@pytest.mark.slow("5")
@pytest.mark.parametrize(("kind", "seed"), [("in place", 1), ("in place", 5), ("random", 2)])
def test_the_smallest_peak_is_proven(kind: str, seed: int) -> None:
    """Strategies and bounds after the exact search do not run where it has proven that nothing fits."""
    graph = tiny_step(seed, 3 + seed % 6, kind)
    instance, least = Judged(graph), ExactOptimum(graph).least_peak()
    assert instance.floor < least < instance.baseline.peak
    with pytest.raises(InfeasibleError) as raised:
        solve(instance, Request(least - 1, 0.0))
    assert raised.value.smallest == least
    assert instance.strategies == {"baseline", "exact"}
