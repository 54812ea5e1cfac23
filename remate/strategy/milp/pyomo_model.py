"""A Pyomo model that Pyomo itself gives to a solver, by the solver's name in Pyomo's `SolverFactory`.

It has the methods of `HighsModel`, for solvers such as CBC, SCIP or Gurobi. Limits of nodes and gaps apply to the
solvers in `OPTIONS`. Solvers have no common count of work, so a limit of work becomes one of seconds. Unlike with
HiGHS, another machine may then get another result. First solutions and targets are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...errors import UnknownNameError
from ..deadline import Deadline
from ..pyomo_api import LinearExpression, LinearStandardFormCompiler, Model, SolverStatus, TerminationCondition, pyo
from .highs import DEFAULT, Result, SolveOptions

# Names of the options for seconds, nodes, absolute gap and relative gap, by a part of the solver's name.
OPTIONS: dict[str, tuple[str, str, str, str]] = {
    "highs": ("time_limit", "mip_max_nodes", "mip_abs_gap", "mip_rel_gap"),
    "cbc": ("seconds", "maxNodes", "allowableGap", "ratioGap"),
    "scip": ("limits/time", "limits/nodes", "limits/absgap", "limits/gap"),
    "gurobi": ("TimeLimit", "NodeLimit", "MIPGapAbs", "MIPGap"),
    "glpk": ("tmlim", "", "", "mipgap"),
}
WORK_PER_SECOND = 5e7  # converts a limit of work to seconds
LEAST = 0.5  # least limit of a solve in seconds
_STATUS = {
    TerminationCondition.optimal: "optimal",
    TerminationCondition.globallyOptimal: "optimal",
    TerminationCondition.infeasible: "infeasible",
    TerminationCondition.infeasibleOrUnbounded: "infeasible",
    TerminationCondition.maxTimeLimit: "time",
    TerminationCondition.userInterrupt: "interrupted",
}


class PyomoModel:
    """A linear Pyomo model with one objective to minimise, and a solver. Columns are its variables.

    Raises:
        UnknownNameError: Pyomo has no such solver, or it is not installed.
    """

    def __init__(self, model: Model, solver: str) -> None:
        self.model, self.solver, self.name = model, available(solver), solver
        form: Any = LinearStandardFormCompiler().write(model, mixed_form=True)
        self.variables: list[Any] = list(form.columns)
        self._column = {id(v): j for j, v in enumerate(self.variables)}
        self.lower = np.array([-np.inf if v.lb is None else v.lb for v in self.variables], dtype=float)
        self.upper = np.array([np.inf if v.ub is None else v.ub for v in self.variables], dtype=float)
        self.cost, self._offset = np.asarray(form.c.todense(), dtype=float).reshape(-1), float(form.c_offset[0])
        self._objective: Any = next(model.component_data_objects(pyo.Objective, active=True))

    def column(self, variable: Any) -> int:
        """Return the column of a variable, or -1 if no objective or row names it."""
        return self._column.get(id(variable), -1)

    def columns(self, variables: Iterable[Any]) -> np.ndarray:
        """Return the columns of variables."""
        return np.array([self.column(v) for v in variables], dtype=np.int64)

    def set_bounds(self, columns: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        """Bound columns."""
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
        """Do nothing: Pyomo reads the sides of constraints from the model at every solve."""

    def solve(self, deadline: Deadline, options: SolveOptions = DEFAULT) -> Result:
        """Minimise the objective as `HighsModel.solve` does; `target` and `start` are ignored."""
        if deadline.stopped():
            return Result("interrupted" if deadline.interrupted else "time", None, float("inf"), -float("inf"))
        deadline.say(f"{self.name} is solving ({options.stage})")
        seconds = min(deadline.remaining(), max(LEAST, options.work / WORK_PER_SECOND))
        nodes = float("inf") if options.relax or options.nodes is None else options.nodes
        limits = (seconds, nodes, options.absolute_gap, options.relative_gap)
        known = next((names for part, names in OPTIONS.items() if part in self.name), ("", "", "", ""))
        wanted = {name: value for name, value in zip(known, limits, strict=True) if name and 0 < value < float("inf")}
        with self._relaxed(options.relax), _quiet():
            results: Any = self.solver.solve(self.model, load_solutions=False, options=wanted)
        return self._result(results)

    @contextmanager
    def _relaxed(self, relax: bool) -> Generator[None]:
        """Let integer variables be fractional for a while."""
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

    def _result(self, results: Any) -> Result:
        condition = results.solver.termination_condition
        status = _STATUS.get(condition, "failed" if results.solver.status == SolverStatus.error else "iterations")
        if status == "infeasible" or not len(results.solution):
            proven = float("inf") if status == "infeasible" else -float("inf")
            return Result(status, None, float("inf"), proven)
        for v in self.variables:
            v.set_value(None, skip_validation=True)
        self.model.solutions.load_from(results)
        x = np.array([_value(v) for v in self.variables])
        objective = float(self.cost @ x) + self._offset
        return Result(status, x, objective, _bound(results))


def available(solver: str) -> Any:
    """Return Pyomo's solver of this name. Raises UnknownNameError if it does not exist or is not installed."""
    with _quiet():
        try:
            known: Any = pyo.SolverFactory(solver)
            installed = bool(known.available(exception_flag=False))
        except Exception:  # Pyomo takes any unknown name for that of a program, and raises errors of many kinds
            installed, known = False, None
    if not installed:
        raise UnknownNameError(
            f"Pyomo finds no solver {solver[:80]!r} here\n  hint: install it (`pyomo help --solvers` lists the solvers "
            "of Pyomo), or leave milp= out for HiGHS"
        )
    return known


def _value(variable: Any) -> float:
    """Return the value of a variable. Solvers omit variables at their lower bound, or in no row."""
    if variable.value is not None:
        return float(variable.value)
    low, high = variable.lb, variable.ub
    return min(max(0.0, -np.inf if low is None else low), np.inf if high is None else high)


def _bound(results: Any) -> float:
    try:
        return float(results.problem.lower_bound)
    except (TypeError, ValueError):
        return -float("inf")


@contextmanager
def _quiet() -> Generator[None]:
    """Silence Pyomo's warnings about limits and missing solvers."""
    logger = logging.getLogger("pyomo")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
