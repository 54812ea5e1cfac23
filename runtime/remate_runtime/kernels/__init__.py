"""Operators and literals of a schedule as live objects of torch."""

from __future__ import annotations

from .grouped import grouped_mm
from .live import needed, operators
from .overloads import TORCH_DTYPES, constant, kernel, literal, overload

__all__ = ["TORCH_DTYPES", "constant", "grouped_mm", "kernel", "literal", "needed", "operators", "overload"]
