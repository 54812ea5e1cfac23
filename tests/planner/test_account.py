"""What the planner counts for itself is what the simulator counts: to the byte, at every operation, under any reruns."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remate.strategy import Instance
from remate.strategy.bound.floor import arguments, forced_bytes
from remate.strategy.local.ledger import TURN, Ledger
from remate.strategy.problem import Problem
from remate_runtime.format import GRADIENTS, Gradients
from remate_runtime.link import Rerun, Run, link, simulate
from remate_runtime.step.graph import FlatRerun, Graph

from .tiny_steps import KINDS, reading_parameters, sharing_gradients, tiny_step


def random_reruns(graph: Graph, seed: int, count: int) -> list[FlatRerun]:
    chance, forward = random.Random(seed), [i for i in range(graph.backward_start) if not graph.operations[i].view]
    reruns = []
    for _ in range(count):
        op = chance.choice(forward)
        reruns.append(FlatRerun(op, chance.randrange(op + 1, len(graph.operations))))
    return sorted(reruns, key=lambda rerun: rerun.before)


def computations(graph: Graph, reruns: list[FlatRerun]) -> list[tuple[int, int]]:
    """(operation, bytes held while it runs) of every run, as the simulator has it."""
    linked = link(graph, reruns)
    during = simulate(linked).during
    return [(e.op, held) for e, held in zip(linked.events, during, strict=True) if isinstance(e, Run | Rerun)]


@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(3, 9), st.integers(0, 12))
@settings(max_examples=400)
def test_the_ledger_counts_as_the_simulator_at_every_step(seed: int, kind: str, forward: int, count: int) -> None:
    graph = tiny_step(seed, forward, kind)
    reruns = random_reruns(graph, seed, count)
    ledger, timeline = Ledger(Problem(graph), reruns), simulate(link(graph, reruns))
    live = [(op, int(held)) for op, held in zip(ledger.order, ledger.live, strict=True) if op != TURN]
    assert live == computations(graph, reruns)
    assert (ledger.peak, ledger.time) == (timeline.peak, timeline.time)


@given(
    st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(3, 9), st.integers(0, 12), st.sampled_from((1, 5, 9))
)
@settings(max_examples=400)
def test_the_ledger_lets_gradients_go_as_the_simulator(
    seed: int, kind: str, forward: int, count: int, together: int
) -> None:
    """Where they are delivered, which reruns that read their parameters delay. together: bytes worth a delivery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remate_runtime.link.deliveries.TOGETHER", together)
        graph = replace(reading_parameters(tiny_step(seed, forward, kind), seed), delivered="consumed")
        problem, reruns = Problem(graph), random_reruns(graph, seed, count)
        ledger, forced, found = Ledger(problem, reruns), forced_bytes(problem), computations(graph, reruns)
        live = [(op, int(held)) for op, held in zip(ledger.order, ledger.live, strict=True) if op != TURN]
        assert live == found
        for op, during in found:
            if op >= problem.backward_start:
                assert forced[op] + sum(problem.size[s] for s in arguments(problem, op)) <= during
        held = computations(replace(graph, delivered="held"), reruns)
        assert all(one[1] <= other[1] for one, other in zip(found, held, strict=True))
        assert Instance(graph).floor <= Instance(replace(graph, delivered="held")).floor


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
    """They are made between two steps, so that the worst moment may be there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remate_runtime.link.deliveries.TOGETHER", together)
        graph = sharing_gradients(reading_parameters(tiny_step(seed, forward, kind), seed))
        graph = replace(graph, delivered=delivered)
        reruns = random_reruns(graph, seed, count)
        ledger, timeline = Ledger(Problem(graph), reruns), simulate(link(graph, reruns))
        assert ledger.peak == timeline.peak
        assert Instance(graph).floor <= timeline.peak


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_what_bounds_count_is_there_in_every_schedule(seed: int, kind: str) -> None:
    graph = tiny_step(seed, 3 + seed % 6, kind)
    problem = Problem(graph)
    forced = forced_bytes(problem)
    for reruns in ([], random_reruns(graph, seed, 8)):
        for op, during in computations(graph, reruns):
            if op >= problem.backward_start:
                assert forced[op] + sum(problem.size[s] for s in arguments(problem, op)) <= during
