"""Graphs of operations without PyTorch: reading, solving, and an independent check of results."""

from .captured import from_step
from .check import check_sequence
from .form import FORMAT, BareInstance, BareNode, decode, encode
from .readers import read
from .result import BareResult, decode_result
from .solving import solve, verify

__all__ = [
    "FORMAT",
    "BareInstance",
    "BareNode",
    "BareResult",
    "check_sequence",
    "decode",
    "decode_result",
    "encode",
    "from_step",
    "read",
    "solve",
    "verify",
]
