"""Pyomo's classes, imported so that a script can still choose how it starts processes.

Pyomo creates a lock of `multiprocessing` when it is imported. That fixes the start method, and a later
`multiprocessing.set_start_method("spawn")` in the user's script would fail.
"""

from __future__ import annotations

import multiprocessing

_chosen = multiprocessing.get_start_method(allow_none=True)

import pyomo.environ as pyo  # noqa: E402
from pyomo.core.expr.numeric_expr import LinearExpression  # noqa: E402
from pyomo.opt import SolverStatus, TerminationCondition  # noqa: E402
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler  # noqa: E402

if _chosen is None:
    multiprocessing.set_start_method(None, force=True)

__all__ = ["LinearExpression", "LinearStandardFormCompiler", "SolverStatus", "TerminationCondition", "pyo"]
