"""Packing without search: buffers in a given order, each as low as the previous ones allow."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from .buffers import Buffer


def in_time_order(buffers: Sequence[Buffer]) -> list[int]:
    """Return addresses as an allocator assigns them during the step, in one block that can grow.

    It takes the smallest sufficient gap at the lowest address. Of buffers that begin together, the largest is first.
    """
    count = len(buffers)
    begins = [(b.first, 1, -b.nbytes, i) for i, b in enumerate(buffers)]
    ends = [(b.end, 0, 0, i) for i, b in enumerate(buffers)]
    addresses, gaps, top = [0] * count, list[tuple[int, int]](), 0  # gaps below `top`: (address, bytes), sorted
    for _, kind, _, index in sorted([*begins, *ends]):
        nbytes = buffers[index].nbytes
        if kind:
            fitting = min(((size, at) for at, size in gaps if size >= nbytes), default=None)
            if fitting is None:
                if gaps and gaps[-1][0] + gaps[-1][1] == top:
                    top = gaps.pop()[0]
                addresses[index], top = top, top + nbytes
            else:
                size, at = fitting
                place = bisect_left(gaps, (at, size))
                gaps[place : place + 1] = [(at + nbytes, size - nbytes)] if size > nbytes else []
                addresses[index] = at
        else:
            _release(gaps, addresses[index], nbytes)
    return addresses


def _release(gaps: list[tuple[int, int]], address: int, nbytes: int) -> None:
    place = bisect_left(gaps, (address, 0))
    if place < len(gaps) and gaps[place][0] == address + nbytes:
        nbytes += gaps.pop(place)[1]
    if place and sum(gaps[place - 1]) == address:
        address, before = gaps.pop(place - 1)
        nbytes += before
    insort(gaps, (address, nbytes))


def by_size(buffers: Sequence[Buffer], overlaps: Sequence[Sequence[int]]) -> list[int]:
    """Place the largest buffers first, each at the lowest address that is free throughout its lifetime."""
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].first, i))
    return _one_by_one(buffers, overlaps, order, tight=False)


def by_lifetime(buffers: Sequence[Buffer], overlaps: Sequence[Sequence[int]]) -> list[int]:
    """Place the longest-lived buffers first, each in the smallest gap that is free throughout its lifetime."""
    lifetime = [b.end - b.first for b in buffers]
    order = sorted(range(len(buffers)), key=lambda i: (-lifetime[i], -buffers[i].nbytes, i))
    return _one_by_one(buffers, overlaps, order, tight=True)


def _one_by_one(
    buffers: Sequence[Buffer], overlaps: Sequence[Sequence[int]], order: Sequence[int], tight: bool
) -> list[int]:
    addresses = [-1] * len(buffers)
    ends = [0] * len(buffers)
    for index in order:
        nbytes, at, gap_at, least = buffers[index].nbytes, 0, -1, 0
        for below, above in sorted(
            (addresses[other], ends[other]) for other in overlaps[index] if addresses[other] >= 0
        ):
            gap = below - at
            if gap >= nbytes and (gap_at < 0 or gap < least):
                gap_at, least = at, gap
                if not tight:
                    break
            at = max(at, above)
        addresses[index] = at if gap_at < 0 else gap_at
        ends[index] = addresses[index] + nbytes
    return addresses
