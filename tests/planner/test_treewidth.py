"""Recursion along a tree decomposition: the guarantees of the paper, on steps of known width and growing length."""

from __future__ import annotations

import pytest

from remate.errors import InfeasibleError
from remate.strategy import Request, StepInstance, policy, solve
from remate.strategy.online.replay import StepReplay
from remate.strategy.online.treewidth import Path, separators_of

from .growing_steps import FAMILIES, UNIT
from .strategy_graphs import random_graph

SIZES = (32, 128, 512)


@pytest.mark.quick("tree-32", "recurrent-32")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_memory_is_the_width_times_the_logarithm_of_the_length(family: str, n: int) -> None:
    """One separator for each level, and few runs of each operation."""
    instance = StepInstance(FAMILIES[family](n))
    separators = instance.view(separators_of)
    budget = UNIT * (separators.width + 1) * (max(separators.depth) + 1)
    recomputes = StepReplay(instance.problem, budget, Path(separators), lambda: False).run()
    assert recomputes is not None
    assert instance.judged(recomputes, "treewidth").peak <= budget
    assert len(recomputes) <= 13 * n
    assert solve(instance, Request(budget), policy("treewidth")).peak <= budget


@pytest.mark.slow("grid")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_width_does_not_grow_and_the_levels_are_those_of_halving(family: str) -> None:
    small, large = (StepInstance(FAMILIES[family](n)).view(separators_of) for n in (SIZES[0], SIZES[-1]))
    assert large.width <= small.width + 1
    assert max(large.depth) <= max(small.depth) + 4, "16 times as many operations are four more halvings"


def least(instance: StepInstance, *, holds: bool) -> tuple[int, int]:
    """The smallest budget that the recursion meets, in bytes, and its recomputations."""
    separators = instance.view(separators_of)
    low, high, runs = instance.floor - 1, instance.baseline.peak, 0
    while high - low > 1:
        middle = (low + high) // 2
        recomputes = StepReplay(instance.problem, middle, Path(separators, holds=holds), lambda: False).run()
        low, high = (middle, high) if recomputes is None else (low, middle)
        runs = runs if recomputes is None else len(recomputes)
    return high, runs


@pytest.mark.quick("32")
@pytest.mark.parametrize("n", SIZES)
def test_where_separators_are_not_held_it_gets_lower_but_takes_longer(n: int) -> None:
    instance = StepInstance(FAMILIES["path"](n))
    (held, few), (ranked, many) = (least(instance, holds=holds) for holds in (True, False))
    assert (ranked, few) < (held, many)
    assert many > 4 * few


@pytest.mark.slow("0")
@pytest.mark.parametrize("seed", range(4))
def test_the_strategy_comes_at_least_as_low_as_the_recursion(seed: int) -> None:
    instance = StepInstance(random_graph(seed, 60))
    lowest = least(instance, holds=True)[0]
    assert solve(instance, Request(lowest), policy("treewidth")).peak <= lowest
    with pytest.raises(InfeasibleError) as caught:
        solve(instance, Request(instance.floor - 1), policy("treewidth"))
    assert caught.value.smallest <= lowest + instance.baseline.peak // 100
