"""The operators and literals of a schedule as callable objects of torch."""

from __future__ import annotations

from .live import needed, operators
from .overloads import TORCH_DTYPES, constant, kernel, literal, overload
from .recurrent import workspace_as_told
from .results import RESULTS

__all__ = [
    "RESULTS",
    "TORCH_DTYPES",
    "constant",
    "kernel",
    "literal",
    "needed",
    "operators",
    "overload",
    "workspace_as_told",
]
