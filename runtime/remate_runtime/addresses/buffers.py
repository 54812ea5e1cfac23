"""What is packed: bytes with a lifetime."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from ..flat_step.graph import DEVICE
from ..link.events import Computation, Linked
from ..link.simulator import memory_of_workspace


class Buffer(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are held from `first` on, until just before `end`."""

    first: int
    end: int
    nbytes: int


def buffers_of(linked: Linked, memory: str = DEVICE) -> tuple[Buffer, ...]:
    """What a linked step holds in a memory, by positions of its events: its storages as the linker derived them, and
    the workspace of every operation while that runs. Their load is the peak that `simulate` tells. Sizes are multiples
    of what the device's allocator deals in, and so are the addresses that packing gives them."""
    graph = linked.graph
    storages = [Buffer(a.birth, a.death, a.nbytes) for a in linked.allocations if a.memory == memory and a.nbytes]
    running = [(at, graph.operations[e.op]) for at, e in enumerate(linked.events) if isinstance(e, Computation)]
    return (
        *storages,
        *(
            Buffer(at, at + 1, op.workspace)
            for at, op in running
            if op.workspace and memory_of_workspace(graph, op) == memory
        ),
    )


class Sections:
    """Time, cut wherever a buffer begins or ends: between two cuts the same buffers are held.

    first, end: by buffer, the sections that it is held in. load: by section, the bytes held. members: by section, the
    buffers.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        times = sorted({time for b in buffers for time in (b.first, b.end)})
        number = {time: at for at, time in enumerate(times)}
        self.count = max(0, len(times) - 1)
        self.first = [number[b.first] for b in buffers]
        self.end = [number[b.end] for b in buffers]
        change = [0] * (len(times) + 1)
        for b, first, end in zip(buffers, self.first, self.end, strict=True):
            change[first] += b.nbytes
            change[end] -= b.nbytes
        self.load = list(accumulate(change))[: self.count]

    def members(self) -> list[list[int]]:
        members: list[list[int]] = [[] for _ in range(self.count)]
        for index, (first, end) in enumerate(zip(self.first, self.end, strict=True)):
            for at in range(first, end):
                members[at].append(index)
        return members


def load(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are held at once: no packing is lower."""
    return max(Sections(buffers).load, default=0)


def overlaps(buffers: Sequence[Buffer], limit: int) -> list[list[int]] | None:
    """By buffer, those that are held at the same time; None where there are more than `limit` pairs."""
    neighbours: list[list[int]] = [[] for _ in buffers]
    live: list[int] = []
    pairs = 0
    for index in sorted(range(len(buffers)), key=lambda i: buffers[i].first):
        live = [other for other in live if buffers[other].end > buffers[index].first]
        pairs += len(live)
        if pairs > limit:
            return None
        for other in live:
            neighbours[other].append(index)
        neighbours[index] += live
        live.append(index)
    return neighbours
