"""The memory of arenas: blocks of running steps, and one that waits for the next step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from ....torch_private.execution import storage_users
from ...eager.placed import ResultPlace

_OWN = 4  # references to a tensor without other users: the two lists, the loop, the count's own


class ArenaBlock:
    """Memory, and the tensors in it of the latest step."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.nbytes = nbytes
        self._of: Mapping[ResultPlace, int] | None = None
        self._slots: list[Any] = []
        self._tensors: list[torch.Tensor] = []
        self._holders = _holders(self.memory)

    def slots(self, empty: list[Any], views: Mapping[ResultPlace, int]) -> list[Any]:
        """Return a copy of `empty` with the tensors at these places in their slots."""
        if self._of is not views:
            self._slots, self._tensors = [], []  # frees the previous ones
            storage, slots = self.memory.untyped_storage(), empty.copy()
            with torch.inference_mode(False), torch.no_grad():
                for place, slot in views.items():
                    tensor = torch.empty(0, dtype=place.dtype, device=self.memory.device)
                    slots[slot] = tensor.set_(storage, place.address // tensor.itemsize, place.shape, place.strides)
            self._of, self._slots = views, slots
            self._tensors = [slots[slot] for slot in views.values()]
            self._holders = _holders(self.memory)
        return self._slots.copy()

    def is_seen_elsewhere(self) -> bool:
        """Return whether other code refers to one of its tensors or to a view of its memory. Call it when no step uses
        it.

        For example, a mode may keep what operators return.
        """
        if _holders(self.memory) != self._holders:
            return True
        count = sys.getrefcount
        return any(count(tensor) > _OWN for tensor in self._tensors)


def _holders(memory: torch.Tensor) -> int:
    """Return the number of tensors on a storage."""
    return storage_users(memory)


Key = tuple[torch.device, int]


class Blocks:
    """The blocks of a model. At most one per device and stream waits: the largest; it stays allocated between steps."""

    def __init__(self) -> None:
        self._waiting: dict[Key, ArenaBlock] = {}

    def take(self, nbytes: int, device: torch.device) -> BlockLease:
        """Return a block of at least `nbytes` bytes for a step. Blocks of running steps are not reused."""
        key = device, _stream(device)
        block = self._waiting.pop(key, None)  # atomically, whatever other threads do
        if block is None or block.nbytes < nbytes or block.is_seen_elsewhere():
            block = None  # before a new one is created
            block = ArenaBlock(nbytes, device)
        return BlockLease(self, key, block)

    def give_back(self, key: Key, block: ArenaBlock) -> None:
        other = self._waiting.get(key)
        if other is None or other.nbytes <= block.nbytes:
            self._waiting[key] = block


class BlockLease:
    """A block for the lifetime of this object, which is in the slots of a step and dropped with them."""

    __slots__ = ("_blocks", "_key", "block")

    def __init__(self, blocks: Blocks, key: Key, block: ArenaBlock) -> None:
        self._blocks, self._key, self.block = blocks, key, block

    def __del__(self) -> None:
        self._blocks.give_back(self._key, self.block)


def _stream(device: torch.device) -> int:
    """Return the current stream. Work on a different stream may still read a block when its step has ended on this
    one."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
