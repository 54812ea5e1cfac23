"""Addresses for buffers with lifetimes in one block of memory, as low as a counted effort reaches.

This is dynamic storage allocation, which is NP-hard (Garey and Johnson, problem SR2). Greedy orders come first. If all
of them exceed the load, which is a lower limit, a search follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .buffers import Buffer, load, overlaps
from .canonical import CanonicalSearch
from .greedy import by_lifetime, by_size, in_time_order

EFFORT = 40_000_000  # a second or two
_SORTED = 8  # effort to visit a buffer among sorted ones
_ROUNDS = 6  # heights to try between the load and the best height


class Packing(msgspec.Struct, frozen=True):
    """Addresses of buffers.

    Attributes:
        addresses: Bytes from the beginning of the block, by buffer.
        height: Bytes of the block.
        load: The most bytes in use at once, a lower limit of the height.
        effort: The effort that was used.
    """

    addresses: tuple[int, ...]
    height: int
    load: int
    effort: int


def pack(buffers: Sequence[Buffer], effort: int = EFFORT) -> Packing:
    """Place buffers so that no two that are in use at the same time overlap.

    Args:
        buffers: The buffers. Those without bytes or lifetime get address 0.
        effort: Visits of buffers beyond the placement in time order, which always runs. The same buffers and effort
            give the same addresses on every machine.
    """
    placed = [i for i, b in enumerate(buffers) if b.nbytes > 0 and b.end > b.first]
    chosen = [buffers[i] for i in placed]
    packed, spent = _packed(chosen, load(chosen), effort)
    addresses = [0] * len(buffers)
    for index, address in zip(placed, packed, strict=True):
        addresses[index] = address
    return Packing(tuple(addresses), _height(chosen, packed), load(chosen), spent)


def _packed(buffers: Sequence[Buffer], least: int, effort: int) -> tuple[list[int], int]:
    """Return addresses and the effort that was used."""
    best = in_time_order(buffers)
    if _height(buffers, best) == least:
        return best, 0
    beside = overlaps(buffers, effort // (4 * _SORTED))
    if beside is None:
        return best, 0
    spent = 2 * _SORTED * sum(map(len, beside))  # both buffers of each pair visit it, in both orders
    for addresses in (by_size(buffers, beside), by_lifetime(buffers, beside)):
        if _height(buffers, addresses) < _height(buffers, best):
            best = addresses
    if 4 * len(buffers) ** 2 > effort - spent:  # not enough to place all of them once
        return best, spent
    search = CanonicalSearch(buffers, beside, effort - spent)
    low, high = least, _height(buffers, best)  # no packing is below `low`, or none was reached
    for at in range(_ROUNDS):
        if low >= high or not search.left:
            break
        height = low if at == 0 else (low + high) // 2
        packed = search.within(height, search.left // 2)
        if packed is None:
            low = height + 1
        else:
            best, high = packed, _height(buffers, packed)
    return best, effort - search.left


def _height(buffers: Sequence[Buffer], addresses: Sequence[int]) -> int:
    return max((a + b.nbytes for a, b in zip(addresses, buffers, strict=True)), default=0)
