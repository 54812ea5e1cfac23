"""What the planner counts for itself is what the simulator counts: to the byte, at every operation, under any
recomputations."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remate.strategy import StepInstance
from remate.strategy.bound.floor import arguments, forced_bytes
from remate.strategy.local.ledger import BACKWARD_START, Ledger
from remate.strategy.problem import Problem
from remate_runtime.flat_step.graph import FlatRecompute, Graph
from remate_runtime.format import GRADIENTS, Gradients
from remate_runtime.link import RecomputeRun, Run, link, simulate

from .tiny_steps import KINDS, reading_parameters, sharing_gradients, tiny_step


def random_recomputes(graph: Graph, seed: int, count: int) -> list[FlatRecompute]:
    chance, forward = random.Random(seed), [i for i in range(graph.backward_start) if not graph.operations[i].view]
    recomputes = []
    for _ in range(count):
        op = chance.choice(forward)
        recomputes.append(FlatRecompute(op, chance.randrange(op + 1, len(graph.operations))))
    return sorted(recomputes, key=lambda recompute: recompute.before)


def computations(graph: Graph, recomputes: list[FlatRecompute]) -> list[tuple[int, int]]:
    """(operation, bytes in memory during it) of every run, from the simulator."""
    linked = link(graph, recomputes)
    during = simulate(linked).during
    return [(e.op, held) for e, held in zip(linked.events, during, strict=True) if isinstance(e, Run | RecomputeRun)]


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(3, 9), st.integers(0, 12))
@settings(max_examples=400)
def test_the_ledger_counts_as_the_simulator_at_every_step(seed: int, kind: str, forward: int, count: int) -> None:
    graph = tiny_step(seed, forward, kind)
    recomputes = random_recomputes(graph, seed, count)
    ledger, timeline = Ledger(Problem(graph), recomputes), simulate(link(graph, recomputes))
    live = [(op, int(held)) for op, held in zip(ledger.order, ledger.live, strict=True) if op != BACKWARD_START]
    assert live == computations(graph, recomputes)
    assert (ledger.peak, ledger.time) == (timeline.peak, timeline.time)


@pytest.mark.slow
@given(
    st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(3, 9), st.integers(0, 12), st.sampled_from((1, 5, 9))
)
@settings(max_examples=400)
def test_the_ledger_lets_gradients_go_as_the_simulator(
    seed: int, kind: str, forward: int, count: int, together: int
) -> None:
    """Gradients are freed at their delivery, which recomputations that read their parameters delay. together: bytes
    that trigger a delivery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remate_runtime.link.deliveries.TOGETHER", together)
        graph = replace(reading_parameters(tiny_step(seed, forward, kind), seed), delivered="consumed")
        problem, recomputes = Problem(graph), random_recomputes(graph, seed, count)
        ledger, forced, result = Ledger(problem, recomputes), forced_bytes(problem), computations(graph, recomputes)
        live = [(op, int(held)) for op, held in zip(ledger.order, ledger.live, strict=True) if op != BACKWARD_START]
        assert live == result
        for op, during in result:
            if op >= problem.backward_start:
                assert forced[op] + sum(problem.size[s] for s in arguments(problem, op)) <= during
        held = computations(replace(graph, delivered="retained"), recomputes)
        assert all(left[1] <= right[1] for left, right in zip(result, held, strict=True))
        assert StepInstance(graph).floor <= StepInstance(replace(graph, delivered="retained")).floor


@given(
    st.integers(0, 10_000),
    st.sampled_from(KINDS),
    st.integers(3, 9),
    st.integers(0, 12),
    st.sampled_from((1, 5, 9)),
    st.sampled_from(GRADIENTS),
)
@example(2, "narrow", 8, 0, 5, "accumulated")  # what is written over behind the delivery is there while it happens
@settings(max_examples=300)
def test_copies_of_gradients_are_counted_alike(
    seed: int, kind: str, forward: int, count: int, together: int, delivered: Gradients
) -> None:
    """Copies are created between two steps, so the peak may be there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remate_runtime.link.deliveries.TOGETHER", together)
        graph = sharing_gradients(reading_parameters(tiny_step(seed, forward, kind), seed))
        graph = replace(graph, delivered=delivered)
        recomputes = random_recomputes(graph, seed, count)
        ledger, timeline = Ledger(Problem(graph), recomputes), simulate(link(graph, recomputes))
        assert ledger.peak == timeline.peak
        assert StepInstance(graph).floor <= timeline.peak


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_what_bounds_count_is_there_in_every_schedule(seed: int, kind: str) -> None:
    graph = tiny_step(seed, 3 + seed % 6, kind)
    problem = Problem(graph)
    forced = forced_bytes(problem)
    for recomputes in ([], random_recomputes(graph, seed, 8)):
        for op, during in computations(graph, recomputes):
            if op >= problem.backward_start:
                assert forced[op] + sum(problem.size[s] for s in arguments(problem, op)) <= during
