"""The flat training step that a schedule file expands to. Needs no torch."""

from __future__ import annotations

from .arguments import to_json
from .expansion import Expanded, expand
from .graph import (
    DEVICE,
    HOST,
    LIVE,
    NUMBER,
    FlatPage,
    FlatRecompute,
    Graph,
    Number,
    Op,
    Ref,
    Value,
    numbers_in,
    planned_number,
)
from .in_place import overwritable
from .layout import InstanceSpan, lay_out
from .page_rules import held_outside, is_paged_gradient, is_parameter, stays

__all__ = [
    "DEVICE",
    "HOST",
    "LIVE",
    "NUMBER",
    "Expanded",
    "FlatPage",
    "FlatRecompute",
    "Graph",
    "InstanceSpan",
    "Number",
    "Op",
    "Ref",
    "Value",
    "expand",
    "held_outside",
    "is_paged_gradient",
    "is_parameter",
    "lay_out",
    "numbers_in",
    "overwritable",
    "planned_number",
    "stays",
    "to_json",
]
