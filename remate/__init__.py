"""Plans activation re-materialization for PyTorch training, and writes the plan to a schedule file.

    schedule = remate.plan(model, (x,), budget="60%")
    schedule.save("model.json")

`remate_runtime.apply(model, "model.json")` then trains the model. `remate.auto` does both at the first training call.
`remate.record` takes the call to plan from a training loop. `remate.solve` solves a graph of operations without
PyTorch.

Names load on first use, so `import remate` imports neither PyTorch nor a solver. If one of them is missing, the name
raises MissingExtraError, which is an ImportError. Every other error is a RemateError.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from remate_runtime.extras import require
from remate_runtime.version import __version__

if TYPE_CHECKING:
    from .api.fit import fit
    from .api.fit_layouts import fit_layouts
    from .api.frontier import frontier
    from .api.pipeline import plan_pipeline
    from .api.plan import plan
    from .budget import BudgetError
    from .capture.recorded import record
    from .errors import (
        CaptureError,
        DimsError,
        InfeasibleError,
        InstanceError,
        LostOutputWarning,
        NotApplicableError,
        ProfileError,
        RemateError,
        UnknownNameError,
    )
    from .standalone_graphs import solve
    from .training import auto

__all__ = [
    "BudgetError",
    "CaptureError",
    "DimsError",
    "InfeasibleError",
    "InstanceError",
    "LostOutputWarning",
    "NotApplicableError",
    "ProfileError",
    "RemateError",
    "UnknownNameError",
    "__version__",
    "auto",
    "fit",
    "fit_layouts",
    "frontier",
    "plan",
    "plan_pipeline",
    "record",
    "solve",
]

_HOME = {
    "BudgetError": ".budget",
    "CaptureError": ".errors",
    "DimsError": ".errors",
    "InfeasibleError": ".errors",
    "InstanceError": ".errors",
    "LostOutputWarning": ".errors",
    "NotApplicableError": ".errors",
    "ProfileError": ".errors",
    "RemateError": ".errors",
    "UnknownNameError": ".errors",
    "auto": ".training.auto",
    "fit": ".api.fit",
    "fit_layouts": ".api.fit_layouts",
    "frontier": ".api.frontier",
    "plan": ".api.plan",
    "plan_pipeline": ".api.pipeline",
    "record": ".capture.recorded",
    "solve": ".standalone_graphs",
}
_NEEDS: dict[str, tuple[str, ...]] = {
    **{name: () for name in _HOME if name.endswith(("Error", "Warning"))},
    **{"auto": ("torch",), "record": ("torch",), "solve": ("plan",)},
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        home = f"; remate_runtime.{name} exists" if name in import_module("remate_runtime").__all__ else ""
        raise AttributeError(f"module 'remate' has no attribute {name!r}{home}")
    require(f"remate.{name}", *_NEEDS.get(name, ("torch", "plan")))
    return getattr(import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
