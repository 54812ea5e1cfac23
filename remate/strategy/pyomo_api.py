"""Pyomo's classes, imported so that a script can still choose how it starts processes.

Pyomo creates a lock of `multiprocessing` when it is imported. That fixes the start method, and a later
`multiprocessing.set_start_method("spawn")` in the user's script would fail.

Pyomo declares no types, so its classes and models are `Any` to type checkers.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any, TypeAlias

_chosen = bool(multiprocessing.get_start_method(allow_none=True))

import pyomo.environ as environ  # noqa: E402
from pyomo import opt  # noqa: E402
from pyomo.core.expr import numeric_expr  # noqa: E402
from pyomo.repn.plugins import standard_form  # noqa: E402

if not _chosen:
    multiprocessing.set_start_method(None, force=True)

Model: TypeAlias = Any  # a model of Pyomo
pyo: Any = environ
LinearExpression: Any = numeric_expr.LinearExpression
LinearStandardFormCompiler: Any = standard_form.LinearStandardFormCompiler
SolverStatus: Any = opt.SolverStatus
TerminationCondition: Any = opt.TerminationCondition


def constraints(rows: Sequence[Any]) -> Any:
    """Return a constraint for each of these relations, by number."""

    def rule(model: Model, at: int) -> Any:
        return rows[at]

    return pyo.Constraint(range(len(rows)), rule=rule)


__all__ = [
    "LinearExpression",
    "LinearStandardFormCompiler",
    "Model",
    "SolverStatus",
    "TerminationCondition",
    "constraints",
    "pyo",
]
