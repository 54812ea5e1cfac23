"""Memory of a step as a line over time, and a schedule as a notebook shows it."""

from __future__ import annotations

from .memory_curve import Curve, curve
from .notebook import schedule_html
from .thinning import thin

__all__ = ["Curve", "curve", "schedule_html", "thin"]
