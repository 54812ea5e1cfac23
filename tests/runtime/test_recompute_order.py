"""Which recomputations go together, and which go first, where a budget has room for what they make."""

from __future__ import annotations

import random

import pytest

from remate_runtime.flat_step import FlatRecompute, Graph
from remate_runtime.link import link, simulate
from remate_runtime.link.recompute_order import groups
from remate_runtime.link.room import affordable

from ..planner.strategy_graphs import Tape, transformer
from ..planner.tiny_steps import KINDS, tiny_step


def everything_again(graph: Graph) -> list[FlatRecompute]:
    """The forward, when it has ended."""
    return [
        FlatRecompute(op, graph.backward_start) for op in range(graph.backward_start) if not graph.operations[op].view
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_every_recompute_is_in_one_group(kind: str, seed: int) -> None:
    graph = tiny_step(seed, 9, kind)
    chance = random.Random(seed)
    recomputes = [recompute for recompute in everything_again(graph) if chance.random() < 0.8]
    order = groups(graph, recomputes)
    assert sorted(op for group in order for op in group.ops) == [recompute.op for recompute in recomputes]
    assert sum(group.figures[0] for group in order) == sum(
        graph.operations[recompute.op].ns for recompute in recomputes
    )
    gone: set[int] = set()
    for group in order:  # whatever is left is a schedule
        gone |= group.ops
        left = [recompute for recompute in recomputes if recompute.op not in gone]
        assert simulate(link(graph, left)).time == sum(op.ns for op in graph.operations) + sum(
            graph.operations[recompute.op].ns for recompute in left
        )


def test_an_operation_goes_with_what_runs_again_for_it_alone() -> None:
    """a → b → c, d. Backward reads c and d; a and b run again for them. Without c, d still needs them; without both,
    nobody does."""
    tape = Tape()
    a = tape.forward((tape.source("x", 10),), (10,), 1, saves_inputs=False)
    b = tape.forward((a,), (10,), 1, saves_inputs=False)
    c = tape.forward((b,), (10,), 100, saves_inputs=False, saves_output=True)
    d = tape.forward((b,), (10,), 10, saves_inputs=False, saves_output=True)
    graph = tape.graph(tape.forward((c, d), (1,), 1, saves_inputs=False))
    recomputes = [FlatRecompute(op, graph.backward_start) for op in range(4)]
    assert [(sorted(group.ops), group.figures) for group in groups(graph, recomputes)] == [
        ([2], (100, 10)),
        ([0, 1, 3], (12, 10)),
    ]


def test_what_is_kept_for_recomputes_alone_counts() -> None:
    """b runs again from a, which is kept for that and is larger: without the recomputation less is held, and it goes
    first."""
    tape = Tape()
    a = tape.forward((tape.source("x", 10),), (50,), 1, saves_inputs=False)
    b = tape.forward((a,), (30,), 5, saves_inputs=False, saves_output=True)
    c = tape.forward((b,), (40,), 500, saves_inputs=False, saves_output=True)
    graph = tape.graph(tape.forward((c,), (1,), 1, saves_inputs=False))
    order = groups(graph, [FlatRecompute(op, graph.backward_start) for op in (1, 2)])
    assert [(sorted(group.ops), group.figures) for group in order] == [([1], (5, -20)), ([2], (500, 40))]


def test_a_budget_that_is_reached_exactly_is_kept() -> None:
    graph = transformer(2)
    recomputes = everything_again(graph)[:3]
    linked = link(graph, recomputes)
    timeline, order = simulate(linked), groups(graph, recomputes)

    def chosen(budget: int) -> int:
        return len(affordable(order, linked, timeline, budget))

    least = next(budget for budget in range(timeline.peak, 2 * timeline.peak) if chosen(budget) == len(order))
    rest = [recompute for recompute in recomputes if recompute.op not in {op for group in order for op in group.ops}]
    assert least == simulate(link(graph, rest)).peak
