"""Where the storages of a step can lie: addresses in one block of memory, found from their lifetimes; and what torch's
allocator would reserve for them. Needs no torch."""

from __future__ import annotations

from .buffers import Buffer, buffers_of, load
from .caching_allocator import Reservation, reserve
from .packing import Packing, pack

__all__ = ["Buffer", "Packing", "Reservation", "buffers_of", "load", "pack", "reserve"]
