"""The components of the strategies: windows and their memory rows, ledger, local search, and the bridge to HiGHS."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remate.strategy import NORMAL, Candidate, Deadline, Proposals, Request, StepInstance, policy
from remate.strategy.local.ledger import Ledger
from remate.strategy.local.polish import as_late_as_possible, longest, polish, pruned, trimmed
from remate.strategy.local.squeeze import squeeze
from remate.strategy.milp.flat import flat_windows
from remate.strategy.milp.formulation import Formulation, linear
from remate.strategy.milp.highs import HighsModel, SolveOptions
from remate.strategy.milp.place import place
from remate.strategy.milp.refinement import refined
from remate.strategy.milp.warm_start import warm_start
from remate.strategy.problem import Problem
from remate.strategy.segments import segments
from remate_runtime.flat_step.graph import FlatRecompute, Graph

from .strategy_graphs import Tape, random_graph, transformer


def judge(problem: Problem, recomputes: Sequence[FlatRecompute]) -> Candidate:
    return StepInstance(problem.graph).judged(recomputes, "")


def outcome(problem: Problem, proposals: Proposals[Candidate]) -> Candidate:
    """The result of a generator after all its proposals are judged."""
    try:
        proposal = next(proposals)
        while True:
            proposal = proposals.send(judge(problem, proposal.recomputes))
    except StopIteration as end:
        return end.value


def random_recomputes(graph: Graph, warm_start: int, count: int) -> list[FlatRecompute]:
    chance = random.Random(warm_start)
    collected = []
    for _ in range(count):
        op = chance.randrange(graph.backward_start)
        collected.append(FlatRecompute(op, chance.randrange(op + 1, len(graph.operations))))
    return sorted(collected, key=lambda r: (r.before, r.op))


@given(st.integers(0, 10_000), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_ledger_counts_as_the_simulator(warm_start: int, count: int) -> None:
    graph = random_graph(warm_start, 14)
    recomputes = random_recomputes(graph, warm_start, count)
    ledger = Ledger(Problem(graph), recomputes)
    result = judge(Problem(graph), recomputes)
    assert (ledger.peak, ledger.time) == (result.peak, result.time)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from([12, 5]), st.sampled_from([0.9, 0.75, 0.6]))
@settings(max_examples=40, deadline=None)
def test_the_formulation_never_promises_too_little(warm_start: int, length: int, share: float) -> None:
    """It counts at least as much as the simulator, and pays for every recomputation."""
    problem = Problem(random_graph(warm_start, 24))
    reference = judge(problem, ()).peak
    w = flat_windows(problem, length)
    model = Formulation(problem, w, reference)
    with Deadline() as deadline:
        result = model.solve(deadline, share * reference, NORMAL, gap=0.0005)
    if result.x is None:
        return
    chosen = model.chosen(result)
    outcome_of_call = judge(problem, place(problem, w, chosen))
    assert outcome_of_call.peak <= model.peak(result) * (1 + 1e-6) + 1
    assert model.peak(result) <= share * reference * (1 + 1e-6) + 1
    extra = 100 * (outcome_of_call.time / problem.baseline_time - 1)
    assert extra <= result.objective + 1e-6
    tight = Formulation(problem, refined(problem, w, chosen), reference)
    with Deadline() as deadline:
        again = tight.solve(deadline, share * reference, NORMAL, gap=0.0005, start=chosen)
    assert again.objective <= result.objective + 0.05 + 1e-6, "a solution fits its own neighbourhood"


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(0, 14), st.floats(0.5, 1.2))
@settings(max_examples=60, deadline=None)
def test_local_search_never_makes_worse(warm_start: int, count: int, share: float) -> None:
    problem = Problem(random_graph(warm_start, 20))
    given_ = judge(problem, random_recomputes(problem.graph, warm_start, count))
    budget = int(share * given_.peak)
    with Deadline() as deadline:
        better = outcome(problem, polish(problem, given_, budget, deadline))
        smaller = judge(problem, squeeze(problem, given_.recomputes, budget, NORMAL, deadline))
    assert better.time <= given_.time
    assert better.peak <= max(budget, given_.peak)
    assert smaller.peak <= given_.peak
    assert judge(problem, pruned(problem, given_.recomputes)).time <= given_.time
    late = as_late_as_possible(problem, given_.recomputes)
    assert sorted(r.op for r in late) == sorted(r.op for r in given_.recomputes)


def test_polish_holds_what_saves_much_for_its_bytes() -> None:
    """All is made again, and 12 bytes are free. Longest first: one value of 10 bytes by 9 ns, and two of a byte by 12
    ns, of which the operation that makes them takes 4. For their bytes: all four of a byte."""
    tape = Tape()
    x = tape.forward((tape.source("x", 1),), (1,), 1, parameter=1)
    wide = [tape.forward((x,), (10,), 9, saves_inputs=False, saves_output=True) for _ in range(4)]
    between = [tape.forward((x,), (10,), 8, saves_inputs=False) for _ in range(4)]
    little = [tape.forward((s,), (1,), 4, saves_inputs=False, saves_output=True) for s in between]
    pooled = tape.forward((*wide, *little), (1,), 1, saves_inputs=False)
    scores = tape.forward((pooled,), (100,), 1, saves_inputs=False)
    problem = Problem(tape.graph(tape.forward((scores,), (1,), 1)))
    every = [FlatRecompute(f, problem.backward_start + 2) for f in range(1, problem.producer[pooled])]
    again = judge(problem, as_late_as_possible(problem, every))
    with Deadline() as deadline:
        quick = judge(problem, trimmed(problem, again.recomputes, again.peak + 12, deadline, longest))
        result = outcome(problem, polish(problem, again, again.peak + 12, deadline))
    assert again.time - quick.time == 9 + 2 * 12
    assert again.time - result.time == 4 * 12


def test_segments_follow_small_cuts() -> None:
    problem = Problem(transformer(6))
    cut = segments(problem, 19)
    assert cut.ends[-1] == problem.backward_start - 1
    assert all(a < b for a, b in zip(cut.ends, cut.ends[1:], strict=False))
    assert all(problem.size[s] <= 1000 for s in cut.boundary), "only the residual stream crosses"
    assert list(cut.stage) == sorted(cut.stage)


def test_seed_is_a_solution_of_the_same_windows() -> None:
    problem = Problem(transformer(3))
    reference = judge(problem, ()).peak
    w = flat_windows(problem, 32)
    model = Formulation(problem, w, reference)
    with Deadline() as deadline:
        result = model.solve(deadline, 0.7 * reference, NORMAL, gap=0.0001)
        chosen = model.chosen(result)
        known = warm_start(problem, w, place(problem, w, chosen))
        again = model.solve(deadline, 0.7 * reference, NORMAL, gap=0.0001, start=known)
    assert {k for k, v in known.items() if v and k[0] == "recompute"} <= {k for k, v in chosen.items() if v}
    assert again.objective <= result.objective + 0.01


def knapsack(count: int) -> Any:
    chance = random.Random(1)
    m: Any = pyo.ConcreteModel()
    m.x = pyo.Var(range(count), domain=pyo.Binary)
    weight = [chance.randint(50, 100) for _ in range(count)]
    worth = [-w - chance.randint(0, 3) for w in weight]
    m.room = pyo.Param(initialize=sum(weight) / 2, mutable=True)
    m.fits = pyo.Constraint(expr=linear(list(m.x.values()), weight) <= m.room)
    m.value = pyo.Objective(expr=linear(list(m.x.values()), worth))
    return m


def test_bridge_solves_again_with_other_sides_bounds_and_costs() -> None:
    model = knapsack(12)
    engine = HighsModel(model)
    with Deadline() as deadline:
        first = engine.solve(deadline)
        assert first.status == "optimal"
        assert first.bound == pytest.approx(first.objective)
        relaxed = engine.solve(deadline, SolveOptions(relax=True))
        assert relaxed.objective <= first.objective
        model.room.set_value(0.0)
        engine.update([model.fits])
        assert engine.solve(deadline).objective == pytest.approx(0.0)
        engine.set_rhs(model.fits, 1.0, 0.0)
        empty = engine.solve(deadline)
        assert (empty.status, empty.x, empty.bound) == ("infeasible", None, float("inf"))
        engine.set_rhs(model.fits, -np.inf, 1e9)
        columns = engine.columns(model.x.values())
        engine.set_bounds(columns, np.zeros(12), np.zeros(12))
        assert engine.solve(deadline).objective == pytest.approx(0.0)
        engine.set_bounds(columns, np.zeros(12), np.ones(12))
        engine.set_cost(np.ones(12))
        assert engine.solve(deadline).objective == pytest.approx(0.0)
        good = engine.solve(deadline, SolveOptions(start=np.ones(12), target=12.0))
        assert good.objective <= 12.0


def test_bridge_reports_limits() -> None:
    engine = HighsModel(knapsack(60))
    with Deadline() as deadline:
        assert engine.solve(deadline, SolveOptions(nodes=1)).status in ("iterations", "gap", "optimal")
        assert HighsModel(knapsack(60)).solve(deadline, SolveOptions(work=0)).status == "iterations"
        assert engine.solve(deadline, SolveOptions(relative_gap=0.5)).status in ("gap", "optimal")
    with Deadline(time_limit=0.0) as deadline:
        assert engine.solve(deadline).status == "time"


def test_a_model_whose_work_was_spent_can_be_solved_again() -> None:
    engine = HighsModel(knapsack(60))
    with Deadline() as deadline:
        assert engine.solve(deadline, SolveOptions(work=0)).x is None
        again, fresh = engine.solve(deadline), HighsModel(knapsack(60)).solve(deadline)
        assert (again.status, again.objective) == (fresh.status, fresh.objective)
        assert again.status == "optimal"


def test_interrupt_keeps_the_process_and_stops_the_search() -> None:
    with Deadline() as deadline:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        while not deadline.stopped() and time.monotonic() - begin < 10:
            time.sleep(0.01)
        assert deadline.interrupted
        assert HighsModel(knapsack(60)).solve(deadline).status == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_progress_tells_incumbent_and_bound() -> None:
    said: list[str] = []
    from remate.strategy import solve

    graph = random_graph(3, 40)
    budget = int(0.8 * judge(Problem(graph), ()).peak)
    solve(StepInstance(graph), Request(budget), policy("flat"), progress=said.append)
    assert any("proven" in text for text in said)
    assert any("more time" in text for text in said)
