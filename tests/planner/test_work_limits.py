"""Limits of work: counted, nested, and kept by every strategy and bound of `auto`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest

from remate.standalone_graphs.graph import bare_step
from remate.strategy import AUTO, QUICK, Context, Deadline, Request, StepInstance, candidates, solve
from remate.strategy.bound.cut_model import CutModel
from remate.strategy.bound.cut_step import cut_step
from remate.strategy.bound.floor import forced_bytes
from remate.strategy.milp.highs import Result, visits
from remate.strategy.registry import strategy

from ..standalone_graphs.dags import random_dag
from .strategy_graphs import random_graph

solving = import_module("remate.strategy.solve")  # the package has a function of this name
ONE_SOLVE = 4e6  # visits that a solve may exceed its limit by: HiGHS cannot end at the root of a search


def test_a_limit_ends_a_strategy_and_not_the_call() -> None:
    deadline = Deadline()
    with deadline.limited(100):
        with deadline.limited(10):
            deadline.spend(11)
            assert deadline.stopped()
            assert not deadline.ended()
        assert not deadline.stopped()
        with deadline.limited(1000):
            deadline.spend(80)
            assert not deadline.stopped()
            deadline.spend(10)
            assert deadline.stopped(), "work within a strategy counts for that strategy"
        assert deadline.stopped()
    assert not deadline.stopped()
    deadline.spend(1e18)
    assert not deadline.stopped(), "without a limit"


def test_a_limit_in_seconds_ends_everything() -> None:
    with Deadline(time_limit=0.0) as deadline, deadline.limited(1e9):
        assert deadline.stopped()
        assert deadline.ended()


@pytest.mark.parametrize("name", ["anneal", "beam", "greedy", "recreate"])
def test_a_strategy_ends_at_its_limit(name: str) -> None:
    instance = bare_step(random_dag(3, 150)).whole
    request = Request(int(0.8 * instance.baseline.peak), effort=QUICK)
    deadline = Deadline()
    with deadline.limited(1e3):
        list(candidates(strategy(name), instance, request, Context(deadline, instance.baseline.time)))
        assert deadline.stopped()


def test_no_strategy_or_bound_of_auto_exceeds_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[float] = []
    limited = Deadline.limited

    @contextmanager
    def recorded(self: Deadline, visits: float) -> Iterator[None]:
        with limited(self, visits):
            yield
            over.append(-self._left)

    monkeypatch.setattr(Deadline, "limited", recorded)
    monkeypatch.setattr(solving, "WORK", 0.01)
    monkeypatch.setattr(solving, "WORK_UNTIL_NEAR", 0.01)
    instance = StepInstance(random_graph(5, 120))
    solution = solve(instance, Request(int(0.7 * instance.baseline.peak), effort=QUICK), AUTO)
    assert solution.peak <= 0.7 * instance.baseline.peak
    assert 0 < max(over) < ONE_SOLVE, "some limit is reached, and none is exceeded by much"


@pytest.mark.parametrize("relax", [True, False])
def test_a_solve_spends_what_its_rows_and_iterations_count(relax: bool) -> None:
    model, solved = _one_cut(Deadline(), relax=relax)
    iterations = model.engine.highs.getInfo().simplex_iteration_count
    deadline = Deadline()
    assert _one_cut(deadline, relax=relax)[1].bound == solved.bound > 0
    assert deadline.spent == visits(model.engine.rows, iterations, relax=relax)


def test_a_relaxation_gets_the_iterations_that_are_left() -> None:
    model, solved = _one_cut(Deadline(), relax=True)
    deadline = Deadline()
    with deadline.limited(visits(model.engine.rows, 1, relax=True)):
        cut_short = _one_cut(deadline, relax=True)[1]
    assert (solved.status, cut_short.status, cut_short.bound) == ("optimal", "iterations", -float("inf"))


def _one_cut(deadline: Deadline, *, relax: bool) -> tuple[CutModel, Result]:
    """Solve the model of one cut behind the forward, under half of the peak."""
    instance = StepInstance(random_graph(5, 60))
    problem, peak = instance.problem, instance.baseline.peak
    model = CutModel(cut_step(problem, 0), 1, peak)
    place = [problem.backward[0]]
    return model, model.solve(deadline, peak // 2, QUICK, place, forced_bytes(problem), relax=relax)
