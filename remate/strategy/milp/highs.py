"""The thin bridge from Pyomo to HiGHS: formulations are ordinary Pyomo models, solved again and again in one instance.

Pyomo compiles the model once; bounds, right-hand sides and objectives may then change and the model be solved again.
One thread and a fixed seed: the same model gives the same solution, unless a time limit stopped the solver.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import highspy
import msgspec
import numpy as np
import pyomo.environ as pyo
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

SEED = 20260101
EVERY = 0.5  # seconds between progress messages of one solve
VERSION = ".".join(
    str(p) for p in (highspy.HIGHS_VERSION_MAJOR, highspy.HIGHS_VERSION_MINOR, highspy.HIGHS_VERSION_PATCH)
)


class Control:
    """Deadline, Ctrl-C and progress of one call of the planner, shared by all its solves. Use it in a `with` statement:
    inside, Ctrl-C asks the running solver to stop, and the best solution so far is used."""

    def __init__(self, time_limit: float | None = None, progress: Callable[[str], None] | None = None) -> None:
        self.start = time.monotonic()
        self.deadline = None if time_limit is None else self.start + time_limit
        self.progress = progress
        self.interrupted = False
        self.hit_limit = False
        self._old: Any = None

    def __enter__(self) -> Control:
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _interrupt(self, number: int, frame: object) -> None:
        self.interrupted = True

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def remaining(self) -> float:
        """Seconds left, infinite without a limit."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def stopped(self) -> bool:
        """Whether to finish with what there is."""
        if self.remaining() <= 0:
            self.hit_limit = True
        return self.interrupted or self.hit_limit

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)


class Result(msgspec.Struct, frozen=True):
    """status: optimal | gap | time | iterations (node limit) | infeasible | interrupted | failed. x: values by column
    (None without a solution). objective: of x, infinite without; bound: proven, whatever the status."""

    status: str
    x: np.ndarray | None
    objective: float
    bound: float


_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kTimeLimit: "time",
    highspy.HighsModelStatus.kInterrupt: "interrupted",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible",
    highspy.HighsModelStatus.kObjectiveTarget: "gap",
    highspy.HighsModelStatus.kSolutionLimit: "iterations",
}


class Engine:
    """A Pyomo model inside HiGHS. The model must be linear with one objective to minimise; columns are its
    variables."""

    def __init__(self, model: pyo.ConcreteModel) -> None:
        form = LinearStandardFormCompiler().write(model, mixed_form=True)
        self._column = {id(v): j for j, v in enumerate(form.columns)}
        self._row = {id(entry.constraint): i for i, entry in enumerate(form.rows)}
        self._keep = model  # ids stay valid as long as the model lives
        self.lower = np.array([-np.inf if v.lb is None else v.lb for v in form.columns], dtype=float)
        self.upper = np.array([np.inf if v.ub is None else v.ub for v in form.columns], dtype=float)
        self._integer = np.array([not v.is_continuous() for v in form.columns], dtype=bool)
        self.cost = np.asarray(form.c.todense(), dtype=float).reshape(-1)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(form.columns), len(form.rows)
        lp.col_cost_ = self.cost
        lp.offset_ = float(form.c_offset[0])
        lp.col_lower_, lp.col_upper_ = self.lower, self.upper
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[bool(i)] for i in self._integer]
        sign = np.array([entry.bound_type for entry in form.rows])
        lp.row_lower_ = np.where(sign <= 0, form.rhs, -np.inf)
        lp.row_upper_ = np.where(sign >= 0, form.rhs, np.inf)
        matrix = form.A.tocsc()
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
        self.nonzeros = int(matrix.nnz)
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("random_seed", SEED)
        self.highs.passModel(lp)
        self._control: Control | None = None
        self._stage = ""
        self._said = 0.0
        self.highs.cbMipInterrupt += self._check
        self.highs.cbSimplexInterrupt += self._check

    def column(self, variable: Any) -> int:
        """Column of a variable, -1 if no objective or row names it."""
        return self._column.get(id(variable), -1)

    def columns(self, variables: Iterable[Any]) -> np.ndarray:
        return np.array([self.column(v) for v in variables], dtype=np.int64)

    def set_bounds(self, columns: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        self.lower[columns], self.upper[columns] = lower, upper
        self.highs.changeColsBounds(
            len(columns), columns.astype(np.int32), np.asarray(lower, float), np.asarray(upper, float)
        )

    def set_cost(self, cost: np.ndarray) -> None:
        self.cost = np.asarray(cost, dtype=float)
        self.highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), self.cost)

    def set_rhs(self, constraint: Any, lower: float, upper: float) -> None:
        self.highs.changeRowBounds(self._row[id(constraint)], lower, upper)

    def solve(
        self,
        control: Control,
        *,
        stage: str = "",
        absolute_gap: float = 0.0,
        relative_gap: float = 0.0,
        target: float = -float("inf"),
        nodes: int | None = None,
        limit: float = float("inf"),
        start: np.ndarray | None = None,
        relax: bool = False,
    ) -> Result:
        """Minimise. target: objective that is good enough. nodes, limit: nodes and seconds of this solve at most.
        start: a first solution by column (NaN: left open). relax: the linear relaxation."""
        highs = self.highs
        self._control, self._stage = control, stage
        seconds = min(limit, control.remaining())
        if control.stopped() or seconds <= 0:
            return Result("interrupted" if control.interrupted else "time", None, float("inf"), -float("inf"))
        highs.setOptionValue("time_limit", highs.getRunTime() + seconds)
        highs.setOptionValue("mip_abs_gap", absolute_gap)
        highs.setOptionValue("mip_rel_gap", relative_gap)
        highs.setOptionValue("objective_target", target)
        highs.setOptionValue("mip_max_nodes", 2**31 - 1 if nodes is None else nodes)
        highs.setOptionValue("solve_relaxation", relax)
        if start is not None and not relax:
            self._start(start)
        highs.run()
        return self._result(absolute_gap, relative_gap, relax)

    def _start(self, start: np.ndarray) -> None:
        known = np.flatnonzero(~np.isnan(start))
        self.highs.setSolution(len(known), known.astype(np.int32), start[known])

    def _result(self, absolute_gap: float, relative_gap: float, relax: bool) -> Result:
        status = self.highs.getModelStatus()
        info = self.highs.getInfo()
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        name = _STATUS.get(status, "failed")
        x = np.array(self.highs.getSolution().col_value) if found else None
        objective = info.objective_function_value if found else float("inf")
        if relax or not self._integer.any():
            return Result(name, x, objective, objective if name == "optimal" else -float("inf"))
        bound = info.mip_dual_bound if name != "infeasible" else float("inf")
        if name == "optimal" and objective - bound > 1e-6 * max(1.0, abs(objective)):
            name = "gap"  # closed to the gap asked for, not to zero
        return Result(name, x, objective, bound)

    def _check(self, event: Any) -> None:
        control = self._control
        if control is None:
            return
        if control.stopped():
            event.interrupt()
        now = time.monotonic()
        if control.progress is not None and now - self._said >= EVERY:
            self._said = now
            primal, dual = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
            incumbent = f"{primal:.3f}%" if abs(primal) < 1e20 else "none yet"
            control.say(f"{self._stage}: incumbent {incumbent}, bound {max(dual, 0.0):.3f}%")


def binaries(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Rounded values of the columns; False for variables that the solver never saw."""
    return np.where(columns >= 0, x[np.maximum(columns, 0)] > 0.5, False)
