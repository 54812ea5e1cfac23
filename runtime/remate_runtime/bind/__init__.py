"""The live model against what a schedule was planned for: parameters, buffers, inputs, outputs. Needs torch."""

from __future__ import annotations

from .containers import children, rebuild

__all__ = ["children", "rebuild"]
