"""Reads schedule files, and trains PyTorch models with them under a memory budget.

    model = remate_runtime.apply(model, "model.json")  # then train as before

Needs msgspec, and PyTorch to train, but neither planner nor solver. Names load on first use: reading a schedule does
not import PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .extras import require
from .version import __version__

if TYPE_CHECKING:
    from .applied import apply, predicted_peak, prepare
    from .errors import (
        BindError,
        EngineError,
        ExecutionError,
        MissingExtraError,
        RemateError,
        ScheduleError,
        StaleModelError,
        StaleModelWarning,
        SteppedAsideWarning,
    )
    from .format.reader import load
    from .format.schedule import Schedule

__all__ = [
    "BindError",
    "EngineError",
    "ExecutionError",
    "MissingExtraError",
    "RemateError",
    "Schedule",
    "ScheduleError",
    "StaleModelError",
    "StaleModelWarning",
    "SteppedAsideWarning",
    "__version__",
    "apply",
    "load",
    "predicted_peak",
    "prepare",
]

_HOME = {
    "BindError": "errors",
    "EngineError": "errors",
    "ExecutionError": "errors",
    "MissingExtraError": "errors",
    "RemateError": "errors",
    "Schedule": "format.schedule",
    "ScheduleError": "errors",
    "StaleModelError": "errors",
    "StaleModelWarning": "errors",
    "SteppedAsideWarning": "errors",
    "apply": "applied",
    "load": "format.reader",
    "predicted_peak": "applied",
    "prepare": "applied",
    "schedule_html": "display",  # of `Schedule._repr_html_`
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'remate_runtime' has no attribute {name!r}")
    if _HOME[name] == "applied":
        require(f"remate_runtime.{name}", "torch")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
