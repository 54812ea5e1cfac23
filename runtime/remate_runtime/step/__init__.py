"""The flat training step: what a schedule file expands to. Needs no torch."""

from __future__ import annotations

from .arguments import to_json
from .expansion import Expanded, expand
from .graph import DEVICE, HOST, FlatRerun, Graph, Op, Ref, Value
from .in_place import overwritable
from .layout import InstanceSpan, lay_out

__all__ = [
    "DEVICE",
    "HOST",
    "Expanded",
    "FlatRerun",
    "Graph",
    "InstanceSpan",
    "Op",
    "Ref",
    "Value",
    "expand",
    "lay_out",
    "overwritable",
    "to_json",
]
