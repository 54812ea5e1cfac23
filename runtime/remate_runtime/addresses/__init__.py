"""Where the storages of a step can lie: addresses in one block of memory, found from their lifetimes. Needs no torch."""

from __future__ import annotations

from .buffers import Buffer, buffers_of, load
from .packing import Packing, pack

__all__ = ["Buffer", "Packing", "buffers_of", "load", "pack"]
