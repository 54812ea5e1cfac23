"""What every strategy promises on 200 random instances: legal, within the budget, above the bound, the same every
time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import remate
from remate.errors import InfeasibleError, NotApplicableError
from remate.standalone_graphs import BareInstance, BareResult, check_sequence, verify
from remate.standalone_graphs.graph import bare_step
from remate.strategy.registry import strategy_names

from .dags import fastest, random_dag

SEEDS = 200
HEAVY = {
    "anneal",
    "checkmate",
    "checkmate-approx",
    "fastsa",
    "flat",
    "flat-squeeze",
    "hiremate",
    "moccasin",
    "recreate",
}  # a few each
NAMES = [name for name in strategy_names() if name != "moccasin" or find_spec("ortools")]


def solved(bare: BareInstance, budget: int, name: str) -> BareResult | InfeasibleError | NotApplicableError:
    try:
        return remate.solve(bare, budget, name, effort="quick")
    except (InfeasibleError, NotApplicableError) as error:
        return error


def promised(bare: BareInstance, budget: int, name: str) -> BareResult | InfeasibleError | NotApplicableError:
    solution = solved(bare, budget, name)
    if isinstance(solution, BareResult):
        verify(bare, solution)
        assert solution.peak <= budget
        assert solution.baseline_time <= solution.lower_bound <= solution.time
    elif isinstance(solution, InfeasibleError):
        assert solution.floor <= solution.smallest <= bare_step(bare).whole.baseline.peak
        assert solution.smallest > budget
    return solution


@pytest.mark.quick("flat", "rotor", "approx", "selective")
@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_keeps_its_promises(name: str) -> None:
    """All 200 instances between them, so some eight each; of those that take long, one or two."""
    seeds = range(NAMES.index(name), SEEDS, len(NAMES))
    keeps(name, list(seeds)[: 1 if name in HEAVY else None], again=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_keeps_its_promises_on_many(name: str) -> None:
    """Those that take long get fewer instances, still of all six kinds."""
    every = 67 if name == "moccasin" else 23 if name in HEAVY else 3
    keeps(name, list(range(0, SEEDS, every)), again=1 if name == "moccasin" else 2 if name in HEAVY else 4)


def keeps(name: str, seeds: list[int], again: int) -> None:
    for number, seed in enumerate(seeds):
        bare = random_dag(seed, 12)
        budget = int((0.9, 0.8, 0.7)[seed % 3] * check_sequence(bare, bare.order).peak)
        result = promised(bare, budget, name)
        if number < again:
            twice = solved(bare, budget, name)
            assert str(twice) == str(result) if isinstance(result, Exception) else twice == result


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_nothing_beats_the_optimum_and_the_portfolio_beats_all(seed: int) -> None:
    bare = random_dag(seed, 8)
    budget = int(0.8 * check_sequence(bare, bare.order).peak)
    best = fastest(bare, budget)
    result = [promised(bare, budget, name) for name in NAMES]
    times = [entry.time for entry in result if isinstance(entry, BareResult)]
    fixed = [entry.time for entry in result if isinstance(entry, BareResult) and not entry.reordered]
    assert all(best is not None and best <= time for time in fixed)
    if times:
        together = remate.solve(bare, budget, "portfolio", effort="quick")
        assert together.time <= min(times)
        assert together.reordered or together.time == best
