"""Time of paged values: one lane to each memory and one back, in which copies follow one another. Needs no torch.

A lane works beside the operations. A copy begins when the step asks for it and the copy before it in the lane is over;
it takes the latency and its bytes over the bandwidth. The step waits where a storage must have left and is not yet
gone, and where it is read and is not yet back.
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
    """What a lane does in a step. direction: of the copies. nbytes: that it moves; copies: in how many; busy: ns;
    stall: ns that the step waits for it."""

    memory: PageMemory
    direction: Literal["out", "back"]
    nbytes: int
    copies: int
    busy: int
    stall: int


class Copy(msgspec.Struct, frozen=True):
    """A copy in a lane: begin and end in ns of the step."""

    memory: PageMemory
    direction: Literal["out", "back"]
    value: int
    begin: int
    end: int


class Lanes:
    """The lanes of one step, event by event."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._free: dict[tuple[str, str], int] = {}  # by lane: when its last copy is over
        self._ends: dict[tuple[str, int], int] = {}  # by direction and trip
        self._stalls: dict[tuple[str, str], int] = {}
        self.copies: list[Copy] = []

    def pass_(self, event: Paging, now: int) -> int:
        """The time behind an event that happens at `now`."""
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
        end = max(now, self._ends.get((direction, event.trip), now))  # of a parameter nothing is copied out
        key = event.to, direction
        self._stalls[key] = self._stalls.get(key, 0) + end - now
        return end

    def uses(self) -> tuple[LaneUse, ...]:
        """What each lane has done, that of the first copy first."""
        found: dict[tuple[PageMemory, Literal["out", "back"]], list[Copy]] = {}
        for copy in self.copies:
            found.setdefault((copy.memory, copy.direction), []).append(copy)
        return tuple(
            LaneUse(
                *lane,
                sum(self._graph.nbytes(copy.value) for copy in copies),
                len(copies),
                sum(copy.end - copy.begin for copy in copies),
                self._stalls.get(lane, 0),
            )
            for lane, copies in found.items()
        )


class Clock(msgspec.Struct, frozen=True):
    """starts: by position of an event, ns of the step at which it begins, waiting of its own included in what follows.
    time: of the whole step. lanes: what they do; copies: each of them."""

    starts: tuple[int, ...]
    time: int
    lanes: tuple[LaneUse, ...]
    copies: tuple[Copy, ...]


def clock(graph: Graph, events: Mapping[int, Paging], spent: list[int]) -> Clock:
    """events: those that page, by position. spent: ns of each event's own."""
    lanes, now, starts = Lanes(graph), 0, list[int]()
    for at, ns in enumerate(spent):
        starts.append(now)
        now = lanes.pass_(events[at], now) if at in events else now + ns
    return Clock(tuple(starts), now, lanes.uses(), tuple(lanes.copies))
