"""What the peak of a schedule asks of an allocator: addresses, of which the file says nothing. Loads neither torch nor
a solver."""

from __future__ import annotations

import msgspec

from remate_runtime.addresses import Reservation, buffers_of, pack, reserve
from remate_runtime.link import Linked

from .analysis import Analysis


def packed_height(opened: Analysis) -> int:
    """Bytes of one block that takes every storage and workspace of the step at an address found from their
    lifetimes."""
    return pack(buffers_of(opened.linked)).height


class Reserved(msgspec.Struct, frozen=True):
    """What torch's allocator reserves for a step, by the model of it: as it is, and with expandable segments."""

    plain: Reservation
    expandable: Reservation


def reserved(linked: Linked) -> Reserved | None:
    """None for a step that does not run on CUDA."""
    if linked.graph.device != "cuda":
        return None
    buffers = buffers_of(linked)
    return Reserved(reserve(buffers), reserve(buffers, expandable=True))
