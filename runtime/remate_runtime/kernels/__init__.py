"""Operators and literals of a schedule as live objects of torch."""

from __future__ import annotations

from .live import operators
from .overloads import TORCH_DTYPES, constant, kernel, literal, overload

__all__ = ["TORCH_DTYPES", "constant", "kernel", "literal", "operators", "overload"]
