"""The exact search over states: reaching a deadline is not a proof."""

from __future__ import annotations

from remate.strategy import Request, StepInstance
from remate.strategy.base import Context
from remate.strategy.deadline import Deadline
from remate.strategy.states.exact import estimate
from remate_runtime.link import link, simulate

from .brute_force import fastest
from .strategy_graphs import random_graph


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
