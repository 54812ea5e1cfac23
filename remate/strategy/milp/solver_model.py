"""Which solver an integer program goes to: HiGHS by the fast path of `highs`, any other through Pyomo's own interface.

Names are those of Pyomo's `SolverFactory`: cbc, scip, gurobi, glpk, appsi_highs. Each must be installed, as Pyomo
wants it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pyomo.environ as pyo

from ..deadline import Deadline
from ..solver_choice import HIGHS
from .highs import HighsModel, Result
from .pyomo_model import PyomoModel


class SolverModel(Protocol):
    """A linear Pyomo model with one objective to minimise, as a solver has it. cost, lower, upper: by column."""

    cost: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def column(self, variable: Any) -> int:
        """Column of a variable, -1 if no objective or row names it."""
        ...

    def columns(self, variables: Iterable[Any]) -> np.ndarray:
        """Columns of variables."""
        ...

    def set_bounds(self, columns: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        """Bound variables."""
        ...

    def set_cost(self, cost: np.ndarray) -> None:
        """Replace the objective, by column."""
        ...

    def update(self, constraints: Iterable[Any]) -> None:
        """Take the sides of constraints anew, after mutable parameters in them have changed."""
        ...

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
        """Minimise, as `HighsModel.solve` says."""
        ...


def solver_model(model: pyo.ConcreteModel, solver: str = HIGHS) -> SolverModel:
    """A model for a solver of this name."""
    return HighsModel(model) if solver == HIGHS else PyomoModel(model, solver)
