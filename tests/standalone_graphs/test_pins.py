"""Outputs that are there at the end: they may be evicted and made again as others may, also behind the last node."""

from __future__ import annotations

import random

import msgspec
import pytest

import remate
from remate.errors import InfeasibleError
from remate.standalone_graphs import BareInstance, BareNode, check_sequence
from remate.standalone_graphs.form import FORMAT, checked

from .dags import fastest, random_dag

SHARES = (0.9, 0.8, 0.7, 0.6)


def pinned(seed: int, count: int = 8) -> BareInstance:
    """A random instance that pins one to three outputs."""
    chance, bare = random.Random(seed), random_dag(seed, count)
    outputs = [f"{node.id}:{k}" if k else node.id for node in bare.nodes for k in range(len(node.bytes))]
    return msgspec.structs.replace(bare, pins=tuple(sorted(chance.sample(outputs, chance.randint(1, 3)))))


def compared(seed: int) -> tuple[int, int]:
    """How many budgets of an instance are feasible, and of these, how many are solved by the fastest sequence."""
    bare, feasible, optimal = pinned(seed), 0, 0
    base = check_sequence(bare, bare.order)
    for share in SHARES:
        budget = int(share * base.peak)
        best = fastest(bare, budget)
        if best is None:
            with pytest.raises(InfeasibleError):
                remate.solve(bare, budget, keep_order=True)
            continue
        solution = remate.solve(bare, budget, keep_order=True)
        assert solution.lower_bound <= best <= solution.time, (
            f"seed {seed} at {budget}: {solution.lower_bound}, {best}, {solution.time}"
        )
        feasible, optimal = feasible + 1, optimal + (solution.time == best)
    return feasible, optimal


@pytest.mark.slow
def test_against_exhaustive_search() -> None:
    counts = [compared(seed) for seed in range(12)]
    assert sum(feasible for feasible, _ in counts) >= 15
    assert all(feasible == optimal for feasible, optimal in counts)


def test_any_order_is_legal_and_within_the_budget() -> None:
    """`solve` verifies each result by the definition. The order that annealing changes leaves the end where it is."""
    for seed in range(6):
        bare = pinned(seed)
        base = check_sequence(bare, bare.order)
        for share in SHARES[:2]:
            try:
                solution = remate.solve(bare, int(share * base.peak), "fastsa", effort="quick")
            except InfeasibleError:
                continue
            assert solution.peak <= int(share * base.peak)


@pytest.mark.quick("beam", "auto")
@pytest.mark.parametrize(("strategy", "budget"), [("auto", 125), ("checkmate", 125), ("beam", 165), ("anneal", 165)])
def test_a_long_chain_that_pins_its_first_output(strategy: str, budget: int) -> None:
    """Too many nodes for the exact search; `a` made again behind the last node takes 120 bytes of 170."""
    chain = [BareNode(f"n{i}", 1, (60,)) for i in range(30)]
    nodes = (BareNode("a", 1, (50,)), *chain, BareNode("d", 1, (1,)))
    edges = (*((f"n{i}", f"n{i + 1}") for i in range(29)), ("n29", "d"))
    bare = checked(BareInstance(FORMAT, 1, nodes, edges, pins=("a",)))
    solution = remate.solve(bare, budget, strategy, keep_order=True)
    assert (solution.peak, solution.time, solution.lower_bound) == (120, 33, 33)
    assert solution.sequence.count("a") == 2


def test_no_bound_above_a_sequence_that_makes_a_pinned_output_again() -> None:
    """A dear `k` and a cheap pinned `a`, of which one must be made again: `a`, behind the last node that needs the
    room."""
    chain = [BareNode(f"n{i}", 1, (40,)) for i in range(28)]
    nodes = (BareNode("a", 1, (10,)), BareNode("k", 100, (20,)), *chain, BareNode("d", 1, (5,)), BareNode("z", 1, (1,)))
    edges = (*((f"n{i}", f"n{i + 1}") for i in range(27)), ("n27", "d"), ("k", "d"), ("d", "z"))
    bare = checked(BareInstance(FORMAT, 1, nodes, edges, pins=("a",)))
    again = check_sequence(bare, (*bare.order[:-1], "a", "z"))
    solution = remate.solve(bare, 100, keep_order=True)
    assert (solution.peak, solution.time, solution.lower_bound) == (again.peak, again.time, again.time)
