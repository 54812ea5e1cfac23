"""A search ends when more work no longer pays, by counts that are equal on every machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from remate.errors import InfeasibleError
from remate.strategy import (
    NORMAL,
    QUICK,
    THOROUGH,
    Candidate,
    Deadline,
    Effort,
    Policy,
    Request,
    Solution,
    StepInstance,
    policy,
    solve,
)
from remate.strategy.effort import USUAL
from remate_runtime.flat_step import FlatRecompute

from .strategy_graphs import random_graph

GRAPH = random_graph(7, 40)
UNLIMITED = replace(NORMAL, enough=float("inf"), most=float("inf"))


class Counting(StepInstance):
    """A step that counts the schedules that are judged."""

    judgements = 0

    def judged(self, recomputes: Sequence[FlatRecompute], strategy: str, solver: str = "none") -> Candidate:
        self.judgements += 1
        return super().judged(recomputes, strategy, solver)


def searched(effort: Effort, by: Policy) -> tuple[Solution, int]:
    step = Counting(GRAPH)
    budget = int(0.7 * step.baseline.peak)
    return solve(step, Request(budget, 0.0, effort), by), step.judgements


def test_the_limits() -> None:
    effort = replace(NORMAL, enough=10.0, most=50.0)
    assert effort.allowed(500, 0.01) == 10.0  # within a percent of the fastest
    assert effort.allowed(500, 0.02) == effort.allowed(500, 0.5) == 50.0
    assert effort.allowed(3 * USUAL, 0.02) == 150.0
    assert effort.allowed(3 * USUAL, 0.005) == 30.0
    assert THOROUGH.allowed(500, 0.5) == float("inf")


def test_one_solve_of_a_bound_keeps_the_limit_of_the_search() -> None:
    deadline = Deadline()
    deadline.allowed = 30.0
    with deadline.limited(100.0):
        assert deadline.left() == 30.0
        deadline.spend(20.0)
        assert deadline.left() == 10.0
        deadline.spend(20.0)
        assert deadline.left() == 0.0


def test_a_search_that_gains_nothing_ends_early() -> None:
    little = replace(NORMAL, enough=0.0, most=3e5)  # by which a schedule fits
    long, judgements = searched(UNLIMITED, policy("auto"))
    short, fewer = searched(little, policy("auto"))
    assert fewer < judgements / 2
    assert short.peak <= int(0.7 * StepInstance(GRAPH).baseline.peak)
    assert (short.stopped_by, short.time >= long.time) == ("heuristic", True)
    assert searched(little, policy("auto")) == (short, fewer)


@pytest.mark.quick("1")
@pytest.mark.parametrize("seed", [1, 8])
def test_a_search_over_all_states_leaves_work_for_other_strategies(seed: int) -> None:
    step = StepInstance(random_graph(seed, 14))
    budget = int(0.7 * step.baseline.peak)
    assert solve(step, Request(budget, 0.0, replace(NORMAL, most=1e5)), policy("auto")).peak <= budget


def refused(effort: Effort, share: float) -> tuple[int, int]:
    """Return the smallest peak of a search in which nothing fits, and its judgements. share: of the proven floor."""
    step = Counting(GRAPH)
    with pytest.raises(InfeasibleError) as error:
        solve(step, Request(int(share * step.floor), 0.0, effort))
    return error.value.smallest, step.judgements


@pytest.mark.slow
def test_a_search_in_which_nothing_fits_ends_early() -> None:
    limited = replace(QUICK, most=3e5)
    assert refused(limited, 1.01)[1] < refused(replace(QUICK, most=float("inf")), 1.01)[1]
    assert refused(limited, 1.01)[0] == refused(limited, 1.02)[0]  # it does not depend on the budget


@pytest.mark.slow
def test_a_strategy_that_was_named_has_no_limit() -> None:
    assert searched(replace(NORMAL, enough=0.0, most=0.0), policy("recreate")) == searched(
        UNLIMITED, policy("recreate")
    )
