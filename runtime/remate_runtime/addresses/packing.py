"""Addresses for buffers with lifetimes in one block of memory, as low as counted effort finds them.

This is dynamic storage allocation, which is NP-hard (Garey and Johnson, problem SR2): greedy orders first, and a search
where all of them are higher than the load, which no packing can be below.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .buffers import Buffer, load, overlaps
from .canonical import CanonicalSearch
from .greedy import by_lifetime, by_size, in_time_order

EFFORT = 40_000_000  # a second or two
_SORTED = 8  # looks that it takes to look at a buffer among sorted ones
_ROUNDS = 6  # heights that are tried between the load and what is found


class Packing(msgspec.Struct, frozen=True):
    """addresses: by buffer, in bytes from the beginning of the block. height: bytes of the block. load: the most bytes
    that are held at once, which the height cannot be below. effort: what was spent of it."""

    addresses: tuple[int, ...]
    height: int
    load: int
    effort: int


def pack(buffers: Sequence[Buffer], effort: int = EFFORT) -> Packing:
    """Place `buffers` so that no two that are held at the same time overlap.

    effort: looks at buffers that may be spent beyond the placing in time order, which always runs. The same buffers and
    effort give the same addresses on every machine. Buffers without bytes or without a lifetime are at address 0.
    """
    placed = [i for i, b in enumerate(buffers) if b.nbytes > 0 and b.end > b.first]
    chosen = [buffers[i] for i in placed]
    packed, spent = _packed(chosen, load(chosen), effort)
    addresses = [0] * len(buffers)
    for index, address in zip(placed, packed, strict=True):
        addresses[index] = address
    return Packing(tuple(addresses), _height(chosen, packed), load(chosen), spent)


def _packed(buffers: Sequence[Buffer], least: int, effort: int) -> tuple[list[int], int]:
    """Addresses and the effort spent on them."""
    best = in_time_order(buffers)
    if _height(buffers, best) == least:
        return best, 0
    beside = overlaps(buffers, effort // (4 * _SORTED))
    if beside is None:
        return best, 0
    spent = 2 * _SORTED * sum(map(len, beside))  # each pair is looked at by both buffers, in both orders
    for addresses in (by_size(buffers, beside), by_lifetime(buffers, beside)):
        if _height(buffers, addresses) < _height(buffers, best):
            best = addresses
    if 4 * len(buffers) ** 2 > effort - spent:  # not enough to place all of them once
        return best, spent
    search = CanonicalSearch(buffers, beside, effort - spent)
    low, high = least, _height(buffers, best)  # below `low` nothing is, or nothing was found
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
