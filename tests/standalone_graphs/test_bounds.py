"""Bounds of steps without a forward/backward boundary: cuts anywhere in the order, and never more than the fastest
sequence takes."""

from __future__ import annotations

import pytest

import remate
from remate.standalone_graphs import BareInstance, BareNode, check_sequence
from remate.standalone_graphs.form import FORMAT, checked
from remate.standalone_graphs.graph import bare_step
from tests.planner.test_cuts import proven

from .dags import fastest, random_dag

SHARES = (0.9, 0.75, 0.65, 0.55)
PART = 20  # seeds that a part of the slow test takes


def compare(seeds: range) -> list[tuple[int, int, int]]:
    """What one cut and several prove, and what the fastest sequence takes, in time beyond the baseline's, where it
    takes any."""
    results: list[tuple[int, int, int]] = []
    for seed in seeds:
        whole = bare_step(bare := random_dag(seed, 9)).whole
        base = whole.baseline
        for share in SHARES:
            budget = int(share * base.peak)
            best = fastest(bare, budget)
            if best is not None and best > base.time:
                item, several = proven("cut", whole, budget), proven("cuts", whole, budget)
                assert max(item, several) <= best, f"seed {seed} at {share}: {item}, {several} above the optimum {best}"
                results.append((item - base.time, several - base.time, best - base.time))
    return results


@pytest.mark.slow
def test_a_sample_of_tiny_instances() -> None:
    result = compare(range(12))
    assert len(result) >= 10
    assert sum(entry == best for entry, _, best in result) >= len(result) // 4
    assert any(several > entry for entry, several, _ in result)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(12, 12 + 10 * PART, PART))
def test_tiny_instances(first: int) -> None:
    assert len(compare(range(first, first + PART))) >= PART // 2


def test_what_runs_once_is_not_promised_to_run_again() -> None:
    """Both `cheap` and `dear` fit beside `wide` alone; the cheap one may not run again."""
    nodes = [BareNode("cheap", 1, (10,), recomputable=False), BareNode("dear", 9, (10,)), BareNode("wide", 1, (10,))]
    nodes += [BareNode("narrow", 1, (1,)), BareNode("end", 1, (1,))]
    edges = (("wide", "narrow"), ("narrow", "end"), ("cheap", "end"), ("dear", "end"))
    bare: BareInstance = checked(BareInstance(FORMAT, 1, tuple(nodes), edges))
    budget = check_sequence(bare, bare.order).peak - 5
    solution = remate.solve(bare, budget, keep_order=True)
    assert (solution.lower_bound, solution.time) == (solution.baseline_time + 9, solution.baseline_time + 9)
    assert proven("cut", bare_step(bare).whole, budget) == solution.time
