"""Which solver an integer program goes to: HiGHS by the fast path of `highs`, any other through Pyomo's own interface.

Names are those of Pyomo's `SolverFactory`: cbc, scip, gurobi, glpk, appsi_highs. Each must be installed, as Pyomo
wants it.
"""

from __future__ import annotations

import pyomo.environ as pyo

from ..solver_choice import HIGHS
from .highs import HighsModel
from .pyomo_model import PyomoModel

SolverModel = HighsModel | PyomoModel  # PyomoModel takes the place of HighsModel: the same methods and arrays


def solver_model(model: pyo.ConcreteModel, solver: str = HIGHS) -> SolverModel:
    """A model for a solver of this name."""
    return HighsModel(model) if solver == HIGHS else PyomoModel(model, solver)
