"""Addresses of storages in one block of memory, and a model of PyTorch's caching allocator. Does not require torch."""

from __future__ import annotations

from .buffers import Buffer, buffers_of, load
from .caching_allocator import Reservation, reserve
from .packing import Packing, pack

__all__ = ["Buffer", "Packing", "Reservation", "buffers_of", "load", "pack", "reserve"]
