"""remate plans activation re-materialization for PyTorch training and writes the plan to a schedule file.

`remate.plan(model, args, ...)` makes a `remate_runtime.Schedule`; `remate_runtime.apply(model, "s.json")` trains with it.
`remate.record(model)` takes the call to plan from a training loop. `remate.solve("instance.json", "80%")` solves a bare DAG
of operations, without PyTorch. What they raise is a RemateError: CaptureError, InfeasibleError, BudgetError, DimsError.
Names load on first use, so that `import remate` costs neither torch nor the solver; without those, a name raises
MissingExtraError, which is an ImportError.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require
from remate_runtime.version import __version__

if TYPE_CHECKING:
    from .api.fit import fit
    from .api.frontier import frontier
    from .api.plan import plan
    from .budget import BudgetError
    from .capture.recorded import record
    from .errors import CaptureError, DimsError, InfeasibleError, RemateError
    from .standalone_graphs import solve

__all__ = [
    "BudgetError",
    "CaptureError",
    "DimsError",
    "InfeasibleError",
    "RemateError",
    "__version__",
    "fit",
    "frontier",
    "plan",
    "record",
    "solve",
]

_HOME = {
    "BudgetError": ".budget",
    "CaptureError": ".errors",
    "DimsError": ".errors",
    "InfeasibleError": ".errors",
    "RemateError": ".errors",
    "fit": ".api.fit",
    "frontier": ".api.frontier",
    "plan": ".api.plan",
    "record": ".capture.recorded",
    "solve": ".standalone_graphs",
}
_NEEDS: dict[str, tuple[str, ...]] = {"record": ("torch",), "solve": ("plan",)}
_NEEDS |= {name: () for name in _HOME if name.endswith("Error")}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'remate' has no attribute {name!r}")
    require(f"remate.{name}", *_NEEDS.get(name, ("torch", "plan")))
    return getattr(import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
