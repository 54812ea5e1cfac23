"""Pages of a schedule file, for the second simulator: from `schema/README.md` alone, nothing of remate imported."""

from __future__ import annotations

from collections.abc import Callable

from .independent_step import Step

ACCOUNTS = {"disk": "disk", "host": "pinned"}
_LANES = {
    "disk": {"out": 10**9, "back": 10**9, "latency": 100_000},
    "host": {"out": 25 * 10**9, "back": 25 * 10**9, "latency": 10_000},
}
Trip = tuple[
    str, str, int, int, int, int
]  # value, memory, and before which number things happen: out, gone, back, ready


def trips(step: Step, root: Callable[[str], str], maker: dict[str, int]) -> list[Trip]:
    """Pages that have an effect. Numbers count what executes, views that are made on demand apart."""
    number, boundary = 0, -1
    first: dict[int, int] = {}
    touched: dict[str, list[tuple[int, bool]]] = {}  # whether it is made there

    def note(values: list[str], made: bool) -> None:
        for value in values:
            touched.setdefault(root(value), []).append((number, made))

    for index in range(len(step.ops) + 1):
        if index == step.backward_start:
            note([*step.outputs, *step.updates.values()], False)
            boundary, number = number, number + 1
        first[index] = number
        for run in [*step.plan.get(index, []), *([index] if index < len(step.ops) else [])]:
            if not step.ops[run].view:
                note(step.ops[run].reads, False)
                note(step.ops[run].writes, True)
                number += 1
    found: dict[tuple[str, int], Trip] = {}
    for value, memory, *points in step.pages:
        out, gone, back = (None if point is None else first[point] for point in points)
        there = touched[value]
        if gone is None:
            gone = 1 + max(at for at, _ in there if at < boundary)
        before = [at for at, made in there if at < gone and made]
        after = sorted(touch for touch in there if touch[0] >= gone)
        if not before or not after or after[0][1]:
            continue
        read = after[0][0]
        back = read if back is None else min(back, read)
        out = min(max(before[-1] + 1, out or 0), gone)
        if gone < back:
            found.setdefault((value, read), (value, memory, out, gone, back, read))
    order = sorted(
        found.values(), key=lambda trip: (trip[3], maker[trip[0]], step.ops[maker[trip[0]]].writes.index(trip[0]))
    )
    over: dict[str, int] = {}
    for at, (value, memory, out, gone, back, read) in enumerate(order):
        order[at] = (value, memory, max(out, over.get(value, 0)), gone, back, read)
        over[value] = read + 1
    return order


class Lanes:
    """When copies are over."""

    def __init__(self, step: Step) -> None:
        self._lanes = {**_LANES, **step.file.get("lanes", {})}
        self._busy: dict[tuple[str, str], int] = {}  # until when a lane is
        self._over: dict[tuple[str, int], int] = {}  # by direction and trip

    def wait(self, kind: str, memory: str, trip: int, nbytes: int, now: int) -> int:
        """How long an event waits."""
        direction = "out" if kind in ("page_out", "page_gone") else "back"
        if kind in ("page_gone", "page_ready"):
            return max(0, self._over[direction, trip] - now)
        lane = self._lanes[memory]
        start = max(now, self._busy.get((memory, direction), 0))
        over = start + lane.get("latency", 0) - -nbytes * 10**9 // lane[direction]
        self._busy[memory, direction] = self._over[direction, trip] = over
        return 0
