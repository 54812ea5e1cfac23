"""The interface from Pyomo to HiGHS: formulations are ordinary Pyomo models, solved repeatedly in one HiGHS instance.

Pyomo compiles the model once. Then bounds, right-hand sides and objectives may change between solves. One thread and a
fixed seed give the same solution every time, unless a time limit stops the solver.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import highspy
import msgspec
import numpy as np

from ..deadline import Deadline
from ..pyomo_api import LinearStandardFormCompiler, Model

SEED = 20260101
CHECK = 300  # simplex iterations that one check of a search counts as; whole relaxations are solved between checks
# Visits of a solve, fitted by `python -m tools.bench.solver_work`. Rows count once because HiGHS is set up again.
RELAXATION, PER_ROW, PER_PIVOT = 400.0, 5.0, 0.01  # per solve, row, and row times simplex iteration
SEARCH, PER_SEARCHED_ROW, PER_ITERATION = 1000.0, 36.0, 310.0  # per solve, row, and simplex iteration
PER_CHECK = 0.08 * CHECK  # per row and check of a search, whose iterations HiGHS reports only at its end
SMALLEST = "smallest peak"  # the stage of solves that minimise bytes
EVERY = 0.5  # seconds between progress messages of one solve
SOLVER = "highs " + ".".join(
    str(p) for p in (highspy.HIGHS_VERSION_MAJOR, highspy.HIGHS_VERSION_MINOR, highspy.HIGHS_VERSION_PATCH)
)


class SolveOptions(msgspec.Struct, frozen=True):
    """Options of one solve. Nodes and work, unlike seconds, give the same result every time.

    Attributes:
        stage: Text for progress lines.
        absolute_gap: Gap at which the solve stops.
        relative_gap: Relative gap at which the solve stops.
        target: Objective at which the solve stops.
        nodes: Most nodes of this solve.
        work: Most rows of the model times simplex iterations of a relaxation, or times `CHECK` for each check (of a
            node, a round of cuts, a dive) of a search.
        start: A first solution by column; NaN for unknown values.
        relax: Whether to solve the linear relaxation only.
    """

    stage: str = ""
    absolute_gap: float = 0.0
    relative_gap: float = 0.0
    target: float = -float("inf")
    nodes: int | None = None
    work: float = float("inf")
    start: np.ndarray | None = None
    relax: bool = False


DEFAULT = SolveOptions()


class _Silent(highspy.Highs):
    """HiGHS without output. From 1.16 on, its constructor enables callbacks, and that prints a banner to stdout."""

    def enableCallbacks(self) -> None:  # noqa: N802 (the name is HiGHS's)
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


class Result(msgspec.Struct, frozen=True):
    """The result of a solve.

    Attributes:
        status: optimal | gap | time | iterations (a limit of nodes or work) | infeasible | interrupted | failed.
        x: Values by column; None without a solution.
        objective: Objective of x; infinite without a solution.
        bound: Proven bound, whatever the status.
        work: As `solve` counts it.
    """

    status: str
    x: np.ndarray | None
    objective: float
    bound: float
    work: float = 0.0


_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kTimeLimit: "time",
    highspy.HighsModelStatus.kInterrupt: "interrupted",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible",
    highspy.HighsModelStatus.kObjectiveTarget: "gap",
    highspy.HighsModelStatus.kSolutionLimit: "iterations",
    highspy.HighsModelStatus.kIterationLimit: "iterations",
}


class HighsModel:
    """A linear Pyomo model with one objective to minimise, inside HiGHS. Columns are its variables."""

    def __init__(self, model: Model) -> None:
        form: Any = LinearStandardFormCompiler().write(model, mixed_form=True)
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
        self.rows = len(form.rows)
        self.highs = _Silent()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("random_seed", SEED)
        self.highs.passModel(lp)
        self._deadline: Deadline | None = None
        self._checks = 0
        self._stage = ""
        self._said = 0.0
        self.highs.cbMipInterrupt += self._check
        self.highs.cbSimplexInterrupt += self._check

    def column(self, variable: Any) -> int:
        """Return the column of a variable, or -1 if no objective or row names it."""
        return self._column.get(id(variable), -1)

    def columns(self, variables: Iterable[Any]) -> np.ndarray:
        """Return the columns of variables."""
        return np.array([self.column(v) for v in variables], dtype=np.int64)

    def set_bounds(self, columns: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        """Bound columns."""
        self.lower[columns], self.upper[columns] = lower, upper
        self.highs.changeColsBounds(
            len(columns), columns.astype(np.int32), np.asarray(lower, float), np.asarray(upper, float)
        )

    def set_cost(self, cost: np.ndarray) -> None:
        """Replace the objective, by column."""
        self.cost = np.asarray(cost, dtype=float)
        self.highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), self.cost)

    def set_rhs(self, constraint: Any, lower: float, upper: float) -> None:
        """Replace the sides of a constraint."""
        self.highs.changeRowBounds(self._row[id(constraint)], lower, upper)

    def update(self, constraints: Iterable[Any]) -> None:
        """Read the sides of constraints again, after mutable parameters in them have changed."""
        for constraint in constraints:
            lower, upper = constraint.lb, constraint.ub
            self.set_rhs(constraint, -np.inf if lower is None else lower, np.inf if upper is None else upper)

    def solve(self, deadline: Deadline, options: SolveOptions = DEFAULT) -> Result:
        """Minimise the objective. deadline: ends the solve early."""
        highs = self.highs
        self._deadline, self._stage = deadline, options.stage
        relax = self.relaxes(options)
        most = int(min(options.work / max(1, self.rows), self._affordable(deadline.left(), relax), 2**31 - 1))
        self._checks = most // CHECK
        if deadline.stopped():
            return Result("interrupted" if deadline.interrupted else "time", None, float("inf"), -float("inf"))
        highs.setOptionValue("time_limit", highs.getRunTime() + deadline.remaining())
        highs.setOptionValue("mip_abs_gap", options.absolute_gap)
        highs.setOptionValue("mip_rel_gap", options.relative_gap)
        highs.setOptionValue("objective_target", options.target)
        highs.setOptionValue("mip_max_nodes", 2**31 - 1 if options.nodes is None else options.nodes)
        highs.setOptionValue("solve_relaxation", options.relax)
        highs.setOptionValue("simplex_iteration_limit", most if options.relax else 2**31 - 1)
        if options.start is not None and not options.relax:
            self._start(options.start)
        highs.run()
        result = self._result(most, relax)
        deadline.spend(visits(self.rows, highs.getInfo().simplex_iteration_count, relax=relax))
        return result

    def relaxes(self, options: SolveOptions) -> bool:
        """Return whether these options solve a linear program."""
        return options.relax or not self._integer.any()

    def _affordable(self, left: float, relax: bool) -> float:
        """Return the simplex iterations that these visits allow, as `solve` counts them."""
        if relax:
            return max(0.0, left - visits(self.rows, 0, relax=True)) / (PER_PIVOT * max(1, self.rows))
        return CHECK * left / (PER_CHECK * max(1, self.rows))

    def _start(self, start: np.ndarray) -> None:
        known = np.flatnonzero(~np.isnan(start))
        self.highs.setSolution(len(known), known.astype(np.int32), start[known])

    def _result(self, most: int, relax: bool) -> Result:
        status = self.highs.getModelStatus()
        info = self.highs.getInfo()
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        name = _STATUS.get(status, "failed")
        if name == "interrupted" and self._deadline is not None and not self._deadline.stopped():
            name = "iterations"
        x = np.array(self.highs.getSolution().col_value) if feasible else None
        objective = info.objective_function_value if feasible else float("inf")
        if relax:
            proven = objective if name == "optimal" else -float("inf")
            return Result(name, x, objective, proven, float(self.rows * info.simplex_iteration_count))
        bound = info.mip_dual_bound if name != "infeasible" else float("inf")
        if name == "optimal" and objective - bound > 1e-6 * max(1.0, abs(objective)):
            name = "gap"  # the gap is within the requested one, but not zero
        return Result(name, x, objective, bound, float(self.rows * CHECK * (most // CHECK - self._checks)))

    def _check(self, event: Any) -> None:
        deadline = self._deadline
        if deadline is None:
            return
        in_search = event.data_out.simplex_iteration_count < 0
        self._checks -= in_search
        # Set it each time: HiGHS remembers an interrupt, and would end every later solve of this model, too.
        event.interrupt(deadline.stopped() or (self._checks < 0 and in_search))
        now = time.monotonic()
        if deadline.progress is not None and now - self._said >= EVERY:
            self._said = now
            primal, dual = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
            deadline.say(_progress(self._stage, primal, dual))


def _progress(stage: str, primal: float, dual: float) -> str:
    """Return a line about a solve; with figures if it has any and they are shares of the step's time."""
    has_solution = abs(primal) < 1e20
    if stage in (SMALLEST, "block", "layer") or (not has_solution and dual <= 0.0):
        return f"searching: {stage}"
    best = f"{primal:.3f}%" if has_solution else "none yet"
    return f"searching: {stage}, best so far {best}, at least {max(dual, 0.0):.3f}%"


def visits(rows: int, iterations: int, *, relax: bool) -> float:
    """Return the work of a solve in visits. It is equal on every machine.

    Args:
        rows: Rows of the model.
        iterations: Simplex iterations; -1 if HiGHS solved nothing.
        relax: Whether it was a linear relaxation.
    """
    iterations = max(0, iterations)
    if relax:
        return RELAXATION + PER_ROW * rows + PER_PIVOT * rows * iterations
    return SEARCH + PER_SEARCHED_ROW * rows + PER_ITERATION * iterations


def binaries(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return rounded values of the columns; False for variables that are not in the solver's model."""
    return np.where(columns >= 0, x[np.maximum(columns, 0)] > 0.5, False)
