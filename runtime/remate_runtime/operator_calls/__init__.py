"""The operators and literals of a schedule as callable objects of torch."""

from __future__ import annotations

from .host_states import read_on_host
from .live import needed, operators
from .overloads import TORCH_DTYPES, constant, kernel, literal, overload, storage_address, storage_identity
from .recurrent import uses_known_workspace
from .results import RESULTS, RETYPED, on_cpu

__all__ = [
    "RESULTS",
    "RETYPED",
    "TORCH_DTYPES",
    "constant",
    "kernel",
    "literal",
    "needed",
    "on_cpu",
    "operators",
    "overload",
    "read_on_host",
    "storage_address",
    "storage_identity",
    "uses_known_workspace",
]
