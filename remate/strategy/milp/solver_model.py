"""Chooses how an integer program is solved: by HiGHS directly (`highs`), or by any other solver through Pyomo.

Names are those of Pyomo's `SolverFactory`: cbc, scip, gurobi, glpk, appsi_highs. The solver must be installed for
Pyomo.
"""

from __future__ import annotations

from ..pyomo_api import Model
from ..solver_choice import HIGHS
from .highs import HighsModel
from .pyomo_model import PyomoModel

SolverModel = HighsModel | PyomoModel  # PyomoModel takes the place of HighsModel: the same methods and arrays


def solver_model(model: Model, solver: str = HIGHS) -> SolverModel:
    """Return a model for the solver of this name."""
    return HighsModel(model) if solver == HIGHS else PyomoModel(model, solver)
