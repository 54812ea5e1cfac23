"""The flat training step that a schedule file expands to. Needs no torch."""

from __future__ import annotations

from .arguments import to_json
from .expansion import Expanded, expand
from .graph import (
    DEVICE,
    HOST,
    LIVE,
    NUMBER,
    Argument,
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
from .layout import InstanceSpan, lay_out
from .page_rules import held_outside, is_paged_gradient, is_parameter, stays
from .renumbering import renumbered, renumbered_argument
from .splitting import FlatSplit, SplitStep, row_count, split_step
from .statements import StatedSplit, tiles_by_id
from .tile_masks import why_not_drawn
from .tile_writer import TILE

__all__ = [
    "DEVICE",
    "HOST",
    "LIVE",
    "NUMBER",
    "TILE",
    "Argument",
    "Expanded",
    "FlatPage",
    "FlatRecompute",
    "FlatSplit",
    "Graph",
    "InstanceSpan",
    "Number",
    "Op",
    "Ref",
    "SplitStep",
    "StatedSplit",
    "Value",
    "expand",
    "held_outside",
    "is_paged_gradient",
    "is_parameter",
    "lay_out",
    "numbers_in",
    "planned_number",
    "renumbered",
    "renumbered_argument",
    "row_count",
    "split_step",
    "stays",
    "tiles_by_id",
    "to_json",
    "why_not_drawn",
]
