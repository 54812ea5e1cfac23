"""The buffers to pack: bytes with a lifetime."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from ..flat_step.graph import DEVICE
from ..link.events import Computation, Linked
from ..link.simulator import allocations_of, memory_of_workspace


class Buffer(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are in use from `first` until just before `end`."""

    first: int
    end: int
    nbytes: int


def buffers_of(linked: Linked, memory: str = DEVICE) -> tuple[Buffer, ...]:
    """Return the buffers of a linked step in a memory, by positions of its events.

    These are its storages as the linker derived them, what FSDP2 uses, and the workspace of every operation while it
    runs. Their load is the peak that `simulate` reports. With FSDP2, it lacks the moments between two operations at
    which parameters or gradients are copied. Sizes are multiples of the device's allocation unit, and so are the
    addresses that packing assigns.
    """
    graph = linked.graph
    allocations = [a for a in allocations_of(linked) if a.memory == memory and a.nbytes and a.birth < a.death]
    storages = [Buffer(a.birth, a.death, a.nbytes) for a in allocations]
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
    """Time, divided wherever a buffer begins or ends. Within a section the same buffers are in use.

    Attributes:
        first: The first section of each buffer.
        end: The section after the last of each buffer.
        load: Bytes in use in each section.
        members: Buffers of each section.
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
    """Return the most bytes in use at once. No packing has a lower height."""
    return max(Sections(buffers).load, default=0)


def overlaps(buffers: Sequence[Buffer], limit: int) -> list[list[int]] | None:
    """Return for each buffer those in use at the same time; None if there are more than `limit` pairs."""
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
