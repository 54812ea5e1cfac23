"""A model of PyTorch's caching allocator for CUDA: the device memory that it *reserves* for a step's allocations.

The rules are those of c10/cuda/CUDACachingAllocator.cpp of PyTorch 2, for one stream and default settings. Sizes are
multiples of 512 bytes. Up to 1 MiB they come from a pool of 2 MiB segments. Larger ones come from a pool with segments
of 20 MiB for sizes below 10 MiB, else of the size itself, rounded up to 2 MiB. The allocator takes the smallest
sufficient free block of the pool, at the lowest address. It splits the block if at least 512 bytes of a small or more
than 1 MiB of a large block remain. Freed blocks merge with free neighbours in their segment; segments are not returned.
With expandable segments each pool is one segment that grows at its end, in pages of 2 MiB and 20 MiB, and every block
is split.

It is a model: a schedule does not determine the order of allocations in kernels, and other libraries allocate too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import msgspec

from .buffers import Buffer

_UNIT = 512
_SMALL, _SMALL_SEGMENT = 1 << 20, 2 << 20
_MEDIUM, _MEDIUM_SEGMENT, _LARGE_UNIT = 10 << 20, 20 << 20, 2 << 20
_APART = 1 << 50  # distance of segments' addresses, so that none are adjacent
_STEPS = 8  # most steps to simulate until a step reserves nothing more


class Reservation(msgspec.Struct, frozen=True):
    """Bytes at the worst moment.

    Attributes:
        reserved: Reserved on the device.
        allocated: In used blocks, including remainders that were too small to split.
    """

    reserved: int
    allocated: int


def reserve(buffers: Sequence[Buffer], expandable: bool = False) -> Reservation:
    """Return what a step of these buffers reserves, repeated until a run reserves nothing more.

    The first run starts with nothing reserved, as after `torch.cuda.empty_cache()`. Parameters and other memory that
    stays between steps is in separate segments. Buffers that begin together are allocated in the given order.
    """
    pools = _Pool(True, expandable), _Pool(False, expandable)
    events = sorted([(b.end, 0, i) for i, b in enumerate(buffers)] + [(b.first, 1, i) for i, b in enumerate(buffers)])
    used = most = 0
    for _ in range(_STEPS):
        before = pools[0].reserved + pools[1].reserved
        blocks: dict[int, tuple[int, int]] = {}
        for _, begins, index in events:
            pool = pools[buffers[index].nbytes > _SMALL]
            if begins:
                blocks[index] = pool.take(buffers[index].nbytes)
                used += blocks[index][1]
                most = max(most, used)
            else:
                used -= blocks[index][1]
                pool.give(*blocks.pop(index))
        if pools[0].reserved + pools[1].reserved == before:
            break
    return Reservation(pools[0].reserved + pools[1].reserved, most)


class _Pool:
    """The free blocks of a pool. small: for sizes up to 1 MiB."""

    def __init__(self, small: bool, expandable: bool) -> None:
        self.small, self.expandable = small, expandable
        self.reserved = 0
        self._segments = 0
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._starts: dict[int, int] = {}  # bytes by address of a free block
        self._ends: dict[int, int] = {}  # start address by end address of a free block

    def take(self, nbytes: int) -> tuple[int, int]:
        """Return address and bytes of a block for a request."""
        nbytes = max(_UNIT, -(-nbytes // _UNIT) * _UNIT)
        at = bisect_left(self._free, (nbytes, 0))
        if at == len(self._free):
            self._grow(nbytes)
            at = bisect_left(self._free, (nbytes, 0))
        size, address = self._free[at]
        self._remove(address)
        left = size - nbytes
        if left >= _UNIT if self.small or self.expandable else left > _SMALL:
            self._add(address + nbytes, left)
            size = nbytes
        return address, size

    def give(self, address: int, nbytes: int) -> None:
        if address + nbytes in self._starts:
            nbytes += self._remove(address + nbytes)
        if address in self._ends:
            address = self._ends[address]
            nbytes += self._remove(address)
        self._add(address, nbytes)

    def _grow(self, nbytes: int) -> None:
        """Reserve memory for a request."""
        if self.expandable:
            page = _SMALL_SEGMENT if self.small else _MEDIUM_SEGMENT
            last = self._ends.get(self.reserved)
            missing = nbytes - (self._starts[last] if last is not None else 0)
            address, size = self.reserved, -(-missing // page) * page
        else:
            unit = _SMALL_SEGMENT if self.small else _MEDIUM_SEGMENT if nbytes < _MEDIUM else _LARGE_UNIT
            address, size = self._segments * _APART, -(-nbytes // unit) * unit
            self._segments += 1
        self.reserved += size
        self.give(address, size)

    def _add(self, address: int, nbytes: int) -> None:
        insort(self._free, (nbytes, address))
        self._starts[address] = nbytes
        self._ends[address + nbytes] = address

    def _remove(self, address: int) -> int:
        nbytes = self._starts.pop(address)
        del self._ends[address + nbytes]
        del self._free[bisect_left(self._free, (nbytes, address))]
        return nbytes
