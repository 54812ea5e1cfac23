"""Time of paged values. Each memory has a lane out and a lane back, in which copies run in sequence.

A lane works in parallel with the operations. A copy begins when the step requests it and the previous copy of the lane
is complete. It takes the latency plus its bytes over the bandwidth. The step waits for a storage that must have left,
and for a storage that is read. Does not require torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from ..flat_step.graph import Graph
from ..format.vocabulary import PageMemory
from .events import PageBack, PageGone, PageOut, PageReady, Paging

_SECOND = 1_000_000_000


class LaneUse(msgspec.Struct, frozen=True):
    """The use of a lane in a step.

    Attributes:
        memory: The memory at its other end.
        direction: Direction of its copies.
        nbytes: Bytes that it copies.
        copies: Number of copies.
        busy: ns of copying.
        stall: ns that the step waits for it.
    """

    memory: PageMemory
    direction: Literal["out", "back"]
    nbytes: int
    copies: int
    busy: int
    stall: int


class Copy(msgspec.Struct, frozen=True):
    """A copy in a lane. begin, end: ns since the step began."""

    memory: PageMemory
    direction: Literal["out", "back"]
    value: int
    begin: int
    end: int


class Lanes:
    """The lanes of a step, event by event."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._free: dict[tuple[str, str], int] = {}  # by lane: end of its last copy
        self._ends: dict[tuple[str, int], int] = {}  # by direction and trip
        self._stalls: dict[tuple[str, str], int] = {}
        self.copies: list[Copy] = []

    def pass_(self, event: Paging, now: int) -> int:
        """Return the time after an event that happens at `now`."""
        match event:
            case PageOut():
                self._copy("out", event, now)
            case PageGone():
                return self._wait("out", event, now)
            case PageBack():
                self._copy("back", event, now)
            case PageReady():
                return self._wait("back", event, now)
        return now

    def _copy(self, direction: Literal["out", "back"], event: Paging, now: int) -> None:
        lane, nbytes = self._graph.lanes[event.to], self._graph.nbytes(event.value)
        begin = max(now, self._free.get((event.to, direction), 0))
        speed = lane.out if direction == "out" else lane.back
        end = begin + lane.latency - -nbytes * _SECOND // speed
        self._free[event.to, direction] = self._ends[direction, event.trip] = end
        self.copies.append(Copy(event.to, direction, event.value, begin, end))

    def _wait(self, direction: str, event: Paging, now: int) -> int:
        end = max(now, self._ends.get((direction, event.trip), now))  # parameters are not copied out
        key = event.to, direction
        self._stalls[key] = self._stalls.get(key, 0) + end - now
        return end

    def uses(self) -> tuple[LaneUse, ...]:
        """Return the use of each lane, in the order of their first copies."""
        copies_of: dict[tuple[PageMemory, Literal["out", "back"]], list[Copy]] = {}
        for copy in self.copies:
            copies_of.setdefault((copy.memory, copy.direction), []).append(copy)
        return tuple(
            LaneUse(
                *lane,
                sum(self._graph.nbytes(copy.value) for copy in copies),
                len(copies),
                sum(copy.end - copy.begin for copy in copies),
                self._stalls.get(lane, 0),
            )
            for lane, copies in copies_of.items()
        )


class Clock(msgspec.Struct, frozen=True):
    """Times of a step with pages.

    Attributes:
        starts: By position of an event, ns since the step began. The event's own wait comes after it.
        time: ns of the step.
        lanes: Use of the lanes.
        copies: All copies.
    """

    starts: tuple[int, ...]
    time: int
    lanes: tuple[LaneUse, ...]
    copies: tuple[Copy, ...]


def clock(graph: Graph, events: Mapping[int, Paging], spent: list[int]) -> Clock:
    """Return the times of a step.

    Args:
        graph: The step.
        events: Its paging events, by position.
        spent: ns of each event.
    """
    lanes, now, starts = Lanes(graph), 0, list[int]()
    for at, ns in enumerate(spent):
        starts.append(now)
        now = lanes.pass_(events[at], now) if at in events else now + ns
    return Clock(tuple(starts), now, lanes.uses(), tuple(lanes.copies))
