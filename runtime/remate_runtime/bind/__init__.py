"""Matches parameters, buffers, inputs and outputs of the live model with those of a schedule. Requires torch."""

from __future__ import annotations

from .attributes import can_be_set
from .changed_numbers import is_number
from .containers import children, is_mapping, is_object, mapped, rebuild
from .distributed import mesh_groups, mesh_names
from .modules import modules_by_path
from .records import record_class
from .sharding import is_distributed, refuse_sharded, sharded_parts
from .sizes import CallSizes

__all__ = [
    "CallSizes",
    "can_be_set",
    "children",
    "is_distributed",
    "is_mapping",
    "is_number",
    "is_object",
    "mapped",
    "mesh_groups",
    "mesh_names",
    "modules_by_path",
    "rebuild",
    "record_class",
    "refuse_sharded",
    "sharded_parts",
]
