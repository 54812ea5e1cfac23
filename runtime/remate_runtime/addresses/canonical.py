"""Search for a packing within a given height.

Canonical solutions: buffers are placed in order of their addresses, each on top of those below it. Every packing can be
pushed down into a canonical one. Dominated choices: no buffer is placed above the top that a different unplaced buffer
would have, because that one could go below it at no cost. Sections: unplaced buffers must fit above the floor of each
section. Periods that no unplaced buffer connects are searched separately. These ideas, and three of the orders in which
buffers are tried, are from Moffitt, MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
Learning (ASPLOS 2023, doi 10.1145/3623278.3624752).

In addition: if only one buffer of a section can be its lowest, all others of the section are above it. That can leave
another section with only one candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise

from .buffers import Buffer, Sections

_ORDERS = (
    "total width area",
    "total area width",
    "width area total",
    "total sections size",
    "sections total size",
)
_Answer = Generator["_Answer", bool, bool]  # yields searches of parts and receives their results


class _Spent(Exception):  # noqa: N818 (no error: the search ends)
    """The effort for a try is used up."""


class CanonicalSearch:
    """Searches for packings.

    Args:
        overlaps: For each buffer, those in use at the same time.
        left: Remaining effort, in visits of buffers.
    """

    def __init__(self, buffers: Sequence[Buffer], overlaps: Sequence[Sequence[int]], left: int) -> None:
        self.left = left
        self._space = _Packing(buffers, overlaps, Sections(buffers))

    def within(self, height: int, effort: int) -> list[int] | None:
        """Return addresses within `height`; None if there are none or `effort` did not suffice. Reduces `left`."""
        for remaining in range(len(_ORDERS), 0, -1):
            may = min(effort, self.left) // remaining
            answer = self._space.search(height, _ORDERS[-remaining], may)
            spent = may - max(0, self._space.left)
            self.left -= spent
            effort -= spent
            if answer is not None:
                return list(self._space.placed) if answer else None
        return None


class _Packing:
    """A try.

    Attributes:
        lowest: For each buffer, its lowest possible address.
        rest: For each section, bytes of unplaced buffers.
    """

    def __init__(self, buffers: Sequence[Buffer], overlaps: Sequence[Sequence[int]], sections: Sections) -> None:
        self.buffers, self.overlaps, self.sections = buffers, overlaps, sections
        self.size = [b.nbytes for b in buffers]
        self.members = sections.members()
        self.placed = [0] * len(buffers)
        self.left = 0

    def search(self, height: int, order: str, effort: int) -> bool | None:
        """Return whether there are addresses within `height`; None if `effort` does not suffice to know."""
        self.height, self.left = height, effort
        self.order = order.split()
        self.lowest = [0] * len(self.buffers)
        self.open = [True] * len(self.buffers)
        self.rest = self.sections.load.copy()
        self.crossing = [0] * (self.sections.count + 1)  # for each section, open buffers that extend over its beginning
        for first, end in zip(self.sections.first, self.sections.end, strict=True):
            for at in range(first + 1, end):
                self.crossing[at] += 1
        if max(self.rest, default=0) > height:
            return False
        try:
            everything = list(range(len(self.buffers)))
            return _run(self._parts(everything, 0, self.sections.count, -1, -1, self._ranks(everything)))
        except _Spent:
            return None

    def _ranks(self, part: Sequence[int]) -> dict[int, int]:
        """Return the rank of each buffer of a part, in order of decreasing values. `total` counts open buffers."""
        sections, buffers, rest = self.sections, self.buffers, self.rest
        value: dict[str, Callable[[int], int]] = {
            "width": lambda i: buffers[i].first - buffers[i].end,
            "area": lambda i: (buffers[i].first - buffers[i].end) * buffers[i].nbytes,
            "total": lambda i: -max(rest[sections.first[i] : sections.end[i]]),
            "sections": lambda i: sections.first[i] - sections.end[i],
            "size": lambda i: -buffers[i].nbytes,
        }
        values = [value[name] for name in self.order]
        return {index: rank for rank, index in enumerate(sorted(part, key=lambda i: [*(v(i) for v in values), i]))}

    def _parts(self, open_: list[int], first: int, end: int, address: int, rank: int, ranks: dict[int, int]) -> _Answer:
        """Search the open buffers between two sections, in parts without a common section, the smallest part first."""
        cuts = [at for at in range(first + 1, end) if not self.crossing[at]]
        if not cuts:
            return (yield self._place(open_, first, end, address, rank, ranks))
        bounds = [first, *cuts, end]
        parts: list[tuple[int, int, int, list[int]]] = []
        for begin, stop in pairwise(bounds):
            inside = [i for i in open_ if begin <= self.sections.first[i] < stop]
            if inside:
                parts.append((len(inside), begin, stop, inside))
        for _, begin, stop, inside in sorted(parts):
            if not (yield self._place(inside, begin, stop, address, -1, self._ranks(inside))):
                return False
        return True

    def _place(self, open_: list[int], first: int, end: int, address: int, rank: int, ranks: dict[int, int]) -> _Answer:
        """Place one of `open_` next, at or above `address` of the latest one; at the same address in order of rank."""
        if not open_:
            return True
        self._spend(len(open_))
        lowest, size = self.lowest, self.size
        top = min([lowest[i] + size[i] for i in open_])
        choices = sorted([(lowest[i], ranks[i], i) for i in open_ if address <= lowest[i] < top])
        for at, place, index in choices:
            if at == address and place < rank:
                continue
            trail: list[tuple[int, int]] = []
            fits = self._put(index, at, first, end, trail)
            if fits:
                self.placed[index] = at
                self._cross(index, -1)
                complete = yield self._parts([i for i in open_ if i != index], first, end, at, place, ranks)
                self._cross(index, 1)
                if complete:
                    self._take(index, trail)
                    return True
            bare = fits and not any(self.open[other] for other in self.overlaps[index])
            self._take(index, trail)
            if bare:  # nothing is above it, so a different address fails in the same way
                return False
        return False

    def _put(self, index: int, at: int, first: int, end: int, trail: list[tuple[int, int]]) -> bool:
        """Place a buffer and raise those above it. Return False if the rest cannot fit. trail: what was raised, and
        from where."""
        sections, rest = self.sections, self.rest
        self._spend(end - first)
        self.open[index] = False
        for section in range(sections.first[index], sections.end[index]):
            rest[section] -= self.size[index]
        if max(rest[first:end]) + at > self.height:
            return False
        touched = set(range(sections.first[index], sections.end[index]))
        above = [other for other in self.overlaps[index] if self.open[other]]
        return self._raise(above, at + self.size[index], touched, trail) and self._settle(touched, at, trail)

    def _raise(self, buffers: Sequence[int], to: int, touched: set[int], trail: list[tuple[int, int]]) -> bool:
        """Raise these buffers to at least `to`. Return False if one does not fit."""
        lowest, sections = self.lowest, self.sections
        for other in buffers:
            if lowest[other] < to:
                trail.append((other, lowest[other]))
                lowest[other] = to
                if to + self.size[other] > self.height:
                    return False
                self._spend(sections.end[other] - sections.first[other])
                touched.update(range(sections.first[other], sections.end[other]))
        return True

    def _settle(self, touched: set[int], at: int, trail: list[tuple[int, int]]) -> bool:
        """Raise others if only one open buffer of a section can be its lowest."""
        lowest, open_ = self.lowest, self.open
        while touched:
            section = touched.pop()
            rest = self.rest[section]
            if not rest:
                continue
            room, below, several = self.height - rest, -1, False
            if at > room:
                return False
            members = self.members[section]
            for index in members:
                if open_[index] and lowest[index] <= room:
                    if below >= 0:
                        several = True
                        break
                    below = index
            self._spend(8 + len(members))
            if below < 0:
                return False
            if not several:
                above = [index for index in members if open_[index] and index != below]
                if not self._raise(above, max(at, lowest[below]) + self.size[below], touched, trail):
                    return False
        return True

    def _take(self, index: int, trail: list[tuple[int, int]]) -> None:
        """Undo `_put`."""
        self.open[index] = True
        for other, lowest in reversed(trail):
            self.lowest[other] = lowest
        for section in range(self.sections.first[index], self.sections.end[index]):
            self.rest[section] += self.size[index]

    def _cross(self, index: int, by: int) -> None:
        for at in range(self.sections.first[index] + 1, self.sections.end[index]):
            self.crossing[at] += by

    def _spend(self, looks: int) -> None:
        self.left -= looks
        if self.left <= 0:
            raise _Spent


def _run(search: _Answer) -> bool:
    """Run nested searches without Python's own stack, which is not deep enough."""
    stack, answer = [search], None
    while True:
        try:
            stack.append(stack[-1].send(answer))  # type: ignore[arg-type]
            answer = None
        except StopIteration as ended:
            stack.pop()
            answer = bool(ended.value)
            if not stack:
                return answer
