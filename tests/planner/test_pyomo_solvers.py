"""Integer programs that Pyomo passes to other solvers: the same optima, and helpful errors."""

from __future__ import annotations

import subprocess
import sys
from shutil import which
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest

from remate.errors import UnknownNameError
from remate.strategy import NORMAL, Deadline, Request, Solvers, StepInstance, policy, solve, with_solvers
from remate.strategy.milp.flat import flat_model
from remate.strategy.milp.highs import SolveOptions
from remate.strategy.milp.pyomo_model import PyomoModel
from remate.strategy.milp.solver_model import solver_model
from remate.strategy.solver_choice import named_solvers

from .strategy_graphs import random_graph

NAMES = [
    "appsi_highs",
    *(
        pytest.param(name, marks=pytest.mark.skipif(which(name) is None, reason="not installed"))
        for name in ("cbc", "scip")
    ),
]


@pytest.mark.slow("appsi_highs")
@pytest.mark.parametrize("solver", NAMES)
@pytest.mark.parametrize("seed", [1, 2])
def test_another_solver_has_the_optimum_of_highs(solver: str, seed: int) -> None:
    instance = StepInstance(random_graph(seed, 40))
    ours, theirs = (flat_model(instance, 12, name) for name in ("highs", solver))
    for share in (0.9, 0.8, 0.3):
        a, b = (m.solve(Deadline(), share * instance.baseline.peak, NORMAL, gap=0.0) for m in (ours, theirs))
        assert (a.x is None) == (b.x is None)
        assert a.x is None or a.objective == pytest.approx(b.objective, abs=1e-5)


@pytest.mark.slow("appsi_highs")
@pytest.mark.parametrize("solver", NAMES)
@pytest.mark.parametrize("name", ["flat", "checkmate"])
def test_a_strategy_by_another_solver(name: str, solver: str) -> None:
    instance = StepInstance(random_graph(1, 40) if name == "flat" else random_graph(2, 12))
    request = Request(int(0.9 * instance.baseline.peak))
    text = with_solvers(name, Solvers(milp=solver))
    ours, theirs = (solve(instance, request, policy(method)) for method in (name, text))
    assert theirs.time == ours.time
    assert theirs.peak <= request.budget
    assert (theirs.strategy, theirs.solver) == (name, f"{solver} through Pyomo")


def knapsack() -> Any:
    m: Any = pyo.ConcreteModel()
    m.x = pyo.Var(range(3), domain=pyo.Binary)
    x: Any = m.x
    m.weight = pyo.Constraint(expr=5 * x[0] + 4 * x[1] + 3 * x[2] <= 8)
    m.cost = pyo.Objective(expr=-(10 * x[0] + 7 * x[1] + 4 * x[2]) + 21)
    return m


@pytest.mark.parametrize("solver", ["highs", *NAMES])
def test_bounds_costs_and_relaxations_of_a_model(solver: str) -> None:
    m = knapsack()
    model = solver_model(m, solver)
    columns = model.columns(m.x.values())
    assert model.solve(Deadline()).objective == pytest.approx(7.0)
    assert model.solve(Deadline(), SolveOptions(relax=True)).objective == pytest.approx(21 - 10 - 3 * 7 / 4)
    model.set_bounds(columns[:1], np.array([0.0]), np.array([0.0]))
    assert model.solve(Deadline()).objective == pytest.approx(10.0)
    model.set_bounds(columns[:1], np.array([0.0]), np.array([1.0]))
    model.set_cost(np.array([-1.0 if c == columns[2] else 0.0 for c in range(len(model.cost))]))
    solved = model.solve(Deadline())
    assert solved.x is not None
    assert solved.x[columns[2]] == pytest.approx(1.0)
    model.set_bounds(columns, np.ones(3), np.ones(3))
    assert model.solve(Deadline()).x is None


def test_a_deadline_is_no_solve() -> None:
    with Deadline(0.0) as deadline:
        assert PyomoModel(knapsack(), "appsi_highs").solve(deadline).status == "time"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flat[milp=no_such_solver]", "Pyomo finds no solver 'no_such_solver'"),
        ("greedy[milp=appsi_highs]", "'greedy' has no option 'milp'"),
        ("flat[leaf=greedy]", "these strategies have options: hiremate \\(inner, leaf, milp, tree\\)"),
        ("auto[milp=appsi_highs]", "auto has no options for solvers"),
        ("hiremate[leaf=nothing]", "there is no strategy 'nothing'"),
        ("hiremate[tree=oak]", "one of modules, graph"),
        ("hiremate[roots=greedy]", "one of leaf, inner, milp, tree"),
        ("hiremate[]", "names no solver"),
    ],
)
def test_what_names_no_solver(text: str, said: str) -> None:
    with pytest.raises(UnknownNameError, match=said):
        policy(text)


def test_names_and_texts_are_inverse() -> None:
    for solvers in (Solvers(), Solvers(leaf="checkmate"), Solvers(inner="rotor", milp="cbc", tree="graph")):
        assert named_solvers(with_solvers("hiremate", solvers)) == ("hiremate", solvers)


@pytest.mark.slow
def test_highs_prints_nothing() -> None:
    """HiGHS prints its banner once in a process, so this needs a new one."""
    solves = (
        "import pyomo.environ as p; from remate.strategy.milp import highs as h; from remate.strategy import Deadline"
    )
    model = (
        "m = p.ConcreteModel(); m.x = p.Var(bounds=(1, 2)); m.o = p.Objective(expr=m.x); "
        "m.c = p.Constraint(expr=m.x >= 1)"
    )
    run = [sys.executable, "-c", f"{solves}\n{model}\nassert h.HighsModel(m).solve(Deadline()).x is not None"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == ""
