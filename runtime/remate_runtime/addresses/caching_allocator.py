"""A model of PyTorch's caching allocator for CUDA: the bytes that it *reserves* of the device to serve what a step
allocates.

The rules are those of c10/cuda/CUDACachingAllocator.cpp of PyTorch 2, for one stream and without settings: sizes are
multiples of 512 bytes. Up to 1 MiB they come from a pool of 2 MiB segments, larger ones from a pool whose segments have
20 MiB below 10 MiB and else the size itself, up to a multiple of 2 MiB. The smallest free block of the pool that is
large enough is taken, the lower of two, and split if 512 bytes of a small or more than 1 MiB of a large one are left.
Freed blocks become one with free ones beside them in their segment; segments are not given back. With expandable
segments each pool is one segment that grows at its end, in pages of 2 MiB and 20 MiB, and every block is split.

It is a model: kernels allocate in an order that the schedule does not tell, and libraries beside it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import msgspec

from .buffers import Buffer

_UNIT = 512
_SMALL, _SMALL_SEGMENT = 1 << 20, 2 << 20
_MEDIUM, _MEDIUM_SEGMENT, _LARGE_UNIT = 10 << 20, 20 << 20, 2 << 20
_APART = 1 << 50  # from one segment's address to the next: no two touch
_STEPS = 8  # that are simulated at most, until one reserves nothing more


class Reservation(msgspec.Struct, frozen=True):
    """Bytes, at the worst moment. reserved: of the device. allocated: in blocks that are in use, whose remainders count
    where they were too small to be split off."""

    reserved: int
    allocated: int


def reserve(buffers: Sequence[Buffer], expandable: bool = False) -> Reservation:
    """What a step of these buffers reserves, run again from what the run before has left until nothing more is
    reserved.

    The first run starts with nothing reserved, as after `torch.cuda.empty_cache()`; parameters and what else is held
    between steps lie in segments of their own. Of buffers that begin together, those that stand first are first.
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
    """Free blocks of a pool. small: of sizes up to 1 MiB."""

    def __init__(self, small: bool, expandable: bool) -> None:
        self.small, self.expandable = small, expandable
        self.reserved = 0
        self._segments = 0
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._starts: dict[int, int] = {}  # by address of a free block: its bytes
        self._ends: dict[int, int] = {}  # by address behind a free block: its own

    def take(self, nbytes: int) -> tuple[int, int]:
        """Address and bytes of a block for a request."""
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
        """Reserve what a request of so many bytes needs."""
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
