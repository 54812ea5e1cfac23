"""The live model against what a schedule was planned for: parameters, buffers, inputs, outputs. Needs torch."""

from __future__ import annotations

from .containers import children, rebuild
from .sizes import CallSizes

__all__ = ["CallSizes", "children", "rebuild"]
