"""A Pyomo model that Pyomo itself hands to a solver, by the name of the solver in Pyomo's `SolverFactory`.

It takes the place of `HighsModel` for solvers such as CBC, SCIP or Gurobi. Limits of nodes and gaps reach those solvers
whose options are in `OPTIONS`. Solvers share no count of work, so a limit of it becomes one of seconds: unlike with
HiGHS, another machine may get another result. A first solution and a target are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.opt import SolverStatus, TerminationCondition
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from ...errors import UnknownNameError
from ..deadline import Deadline
from .highs import Result

# What solvers call their limits: seconds, nodes, absolute gap, relative gap. By a part of the solver's name.
OPTIONS: dict[str, tuple[str, str, str, str]] = {
    "highs": ("time_limit", "mip_max_nodes", "mip_abs_gap", "mip_rel_gap"),
    "cbc": ("seconds", "maxNodes", "allowableGap", "ratioGap"),
    "scip": ("limits/time", "limits/nodes", "limits/absgap", "limits/gap"),
    "gurobi": ("TimeLimit", "NodeLimit", "MIPGapAbs", "MIPGap"),
    "glpk": ("tmlim", "", "", "mipgap"),
}
WORK_PER_SECOND = 5e7  # what a limit of work counts as
LEAST = 0.5  # seconds of a solve
_STATUS = {
    TerminationCondition.optimal: "optimal",
    TerminationCondition.globallyOptimal: "optimal",
    TerminationCondition.infeasible: "infeasible",
    TerminationCondition.infeasibleOrUnbounded: "infeasible",
    TerminationCondition.maxTimeLimit: "time",
    TerminationCondition.userInterrupt: "interrupted",
}


class PyomoModel:
    """A linear Pyomo model with one objective to minimise, and a solver. Columns are its variables. Raises
    UnknownNameError where Pyomo knows no such solver, or it is not installed."""

    def __init__(self, model: pyo.ConcreteModel, solver: str) -> None:
        self.model, self.solver, self.name = model, available(solver), solver
        form = LinearStandardFormCompiler().write(model, mixed_form=True)
        self.variables = list(form.columns)
        self._column = {id(v): j for j, v in enumerate(self.variables)}
        self.lower = np.array([-np.inf if v.lb is None else v.lb for v in self.variables], dtype=float)
        self.upper = np.array([np.inf if v.ub is None else v.ub for v in self.variables], dtype=float)
        self.cost, self._offset = np.asarray(form.c.todense(), dtype=float).reshape(-1), float(form.c_offset[0])
        self._objective: Any = next(model.component_data_objects(pyo.Objective, active=True))

    def column(self, variable: Any) -> int:
        """Column of a variable, -1 if no objective or row names it."""
        return self._column.get(id(variable), -1)

    def columns(self, variables: Iterable[Any]) -> np.ndarray:
        """Columns of variables."""
        return np.array([self.column(v) for v in variables], dtype=np.int64)

    def set_bounds(self, columns: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        """Bound variables."""
        self.lower[columns], self.upper[columns] = lower, upper
        for column in columns:
            low, high = float(self.lower[column]), float(self.upper[column])
            self.variables[column].setlb(None if low == -np.inf else low)
            self.variables[column].setub(None if high == np.inf else high)

    def set_cost(self, cost: np.ndarray) -> None:
        """Replace the objective, by column."""
        self.cost = np.asarray(cost, dtype=float)
        used = [j for j, c in enumerate(self.cost) if c]
        expression = LinearExpression(
            constant=self._offset,
            linear_coefs=[float(self.cost[j]) for j in used],
            linear_vars=[self.variables[j] for j in used],
        )
        self._objective.set_value(expression)

    def update(self, constraints: Iterable[Any]) -> None:
        """Pyomo takes the sides of constraints from the model at every solve."""

    def solve(
        self,
        deadline: Deadline,
        *,
        stage: str = "",
        absolute_gap: float = 0.0,
        relative_gap: float = 0.0,
        target: float = -float("inf"),
        nodes: int | None = None,
        work: float = float("inf"),
        start: np.ndarray | None = None,
        relax: bool = False,
    ) -> Result:
        """Minimise, as `HighsModel.solve` says; target and start are left out. relax: the linear relaxation."""
        if deadline.stopped():
            return Result("interrupted" if deadline.interrupted else "time", None, float("inf"), -float("inf"))
        deadline.say(f"{self.name} is solving ({stage})")
        seconds = min(deadline.remaining(), max(LEAST, work / WORK_PER_SECOND))
        limits = (seconds, float("inf") if relax or nodes is None else nodes, absolute_gap, relative_gap)
        known = next((names for part, names in OPTIONS.items() if part in self.name), ("", "", "", ""))
        wanted = {name: value for name, value in zip(known, limits, strict=True) if name and 0 < value < float("inf")}
        with self._relaxed(relax), _quiet():
            found: Any = self.solver.solve(self.model, load_solutions=False, options=wanted)
        return self._result(found)

    @contextmanager
    def _relaxed(self, relax: bool) -> Iterator[None]:
        """Variables that may be fractional, for a while."""
        integer = [v for v in self.variables if relax and not v.is_continuous()]
        domains, bounds = [v.domain for v in integer], [(v.lb, v.ub) for v in integer]
        for v, (low, high) in zip(integer, bounds, strict=True):
            v.domain = pyo.Reals
            v.setlb(low)
            v.setub(high)
        try:
            yield
        finally:
            for v, domain in zip(integer, domains, strict=True):
                v.domain = domain

    def _result(self, found: Any) -> Result:
        condition = found.solver.termination_condition
        status = _STATUS.get(condition, "failed" if found.solver.status == SolverStatus.error else "iterations")
        if status == "infeasible" or not len(found.solution):
            proven = float("inf") if status == "infeasible" else -float("inf")
            return Result(status, None, float("inf"), proven)
        for v in self.variables:
            v.set_value(None, skip_validation=True)
        self.model.solutions.load_from(found)
        x = np.array([_value(v) for v in self.variables])
        objective = float(self.cost @ x) + self._offset
        return Result(status, x, objective, _bound(found))


def available(solver: str) -> Any:
    """Pyomo's solver of this name. Raises UnknownNameError where there is none, or it is not installed."""
    with _quiet():
        try:
            made: Any = pyo.SolverFactory(solver)
            there = bool(made.available(exception_flag=False))
        except Exception:  # Pyomo takes any other name for that of a program, and raises what it likes
            there, made = False, None
    if not there:
        raise UnknownNameError(
            f"Pyomo finds no solver {solver[:80]!r} here\n  hint: install it (`pyomo help --solvers` lists what Pyomo "
            "knows), or leave milp= out for HiGHS"
        )
    return made


def _value(variable: Any) -> float:
    """Its value; solvers leave out what is at its lower bound, or in no row."""
    if variable.value is not None:
        return float(variable.value)
    low, high = variable.lb, variable.ub
    return min(max(0.0, -np.inf if low is None else low), np.inf if high is None else high)


def _bound(found: Any) -> float:
    try:
        return float(found.problem.lower_bound)
    except (TypeError, ValueError):
        return -float("inf")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Pyomo's warnings: a limit that ended a solve, a solver that is not there."""
    logger = logging.getLogger("pyomo")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
