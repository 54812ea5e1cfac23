"""Matches parameters, buffers, inputs and outputs of the live model with those of a schedule. Requires torch."""

from __future__ import annotations

from .containers import children, rebuild
from .records import record_class
from .sharding import refuse_sharded
from .sizes import CallSizes

__all__ = ["CallSizes", "children", "rebuild", "record_class", "refuse_sharded"]
