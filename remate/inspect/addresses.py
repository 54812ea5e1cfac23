"""What the peak of a schedule asks of an allocator: addresses, of which the file says nothing. Loads neither torch nor a solver."""

from __future__ import annotations

from remate_runtime.addresses import buffers_of, pack

from .analysis import Analysis


def packed_height(opened: Analysis) -> int:
    """Bytes of one block that takes every storage and workspace of the step at an address found from their lifetimes."""
    return pack(buffers_of(opened.linked)).height
