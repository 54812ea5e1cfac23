"""What the peak of a schedule means for an allocator, which needs addresses. Loads neither torch nor a solver."""

from __future__ import annotations

import msgspec

from remate_runtime.addresses import Reservation, buffers_of, pack, reserve
from remate_runtime.link import Linked

from .analysis import Analysis


def packed_height(opened: Analysis) -> int:
    """Bytes of one block in which every storage and workspace of the step has an address, assigned from live ranges."""
    return pack(buffers_of(opened.linked)).height


class Reserved(msgspec.Struct, frozen=True):
    """Memory that torch's allocator reserves for a step, by a model of it: by default, and with expandable segments."""

    plain: Reservation
    expandable: Reservation


def reserved(linked: Linked) -> Reserved | None:
    """Predict the reserved memory; None for a step that does not run on CUDA."""
    if linked.graph.device != "cuda":
        return None
    buffers = buffers_of(linked)
    return Reserved(reserve(buffers), reserve(buffers, expandable=True))
