"""Pages of a schedule file, for the second simulator: from `schema/README.md` alone, without importing remate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

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
    """Pages with an effect. Numbers count executions, without views that are computed on demand."""
    number, boundary = 0, -1
    first: dict[int, int] = {}
    touched: dict[str, list[tuple[int, bool]]] = {}  # whether it is made there

    def note(values: list[str], writes: bool) -> None:
        for value in values:
            touched.setdefault(root(value), []).append((number, writes))

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
    by_read: dict[tuple[str, int], Trip] = {}
    for value, memory, *points in step.pages:
        out, gone, back = (None if point is None else first[point] for point in points)
        there = touched.get(value, [])
        if value in step.parameters:
            for trip in _of_parameter(value, memory, gone, back, sorted(at for at, _ in there)):
                by_read.setdefault((value, trip[5]), trip)
            continue
        if value in step.gradients.values():
            continue
        if gone is None:
            gone = 1 + max(at for at, _ in there if at < boundary)
        before = [at for at, written in there if at < gone and written]
        after = sorted(touch for touch in there if touch[0] >= gone)
        if not before or not after or after[0][1]:
            continue
        read = after[0][0]
        back = read if back is None else min(back, read)
        out = min(max(before[-1] + 1, out or 0), gone)
        if gone < back:
            by_read.setdefault((value, read), (value, memory, out, gone, back, read))

    def place(value: str) -> tuple[int, int]:
        if value in step.parameters:
            return -1, step.parameters.index(value)
        return maker[value], step.ops[maker[value]].writes.index(value)

    order = sorted(by_read.values(), key=lambda trip: (trip[3], *place(trip[0])))
    over: dict[str, int] = {}
    for at, (value, memory, out, gone, back, read) in enumerate(order):
        if value in step.parameters:
            continue
        order[at] = (value, memory, max(out, over.get(value, 0)), gone, back, read)
        over[value] = read + 1
    return order


def _of_parameter(value: str, memory: str, gone: int | None, back: int | None, reads: list[int]) -> list[Trip]:
    """The same of a parameter: -1 for a copy out, of which there is none, and for `gone` of the gap between steps."""
    after = [at for at in reads if gone is None or at >= gone]
    if not after or (gone is not None and after == reads):
        return []
    there = after[0] if back is None else min(back, after[0])
    trips = [(value, memory, -1, -1 if gone is None else gone, there, after[0])] if gone is None or gone < there else []
    if gone is None and back is None:
        inner = [(before, other) for before, other in pairwise(reads) if other > before + 1]
        trips += [(value, memory, -1, before + 1, other, other) for before, other in inner]
    return trips


def leaving(
    step: Step,
    order: list,
    root: Callable[[str], str],
    trips: list[Trip],
    deliveries: dict[int, list[str]],
    consumed: bool,
) -> dict[int, list[tuple[str, str, int]]]:
    """For each execution, the parameters and gradients that leave after it: value, memory, number of the trip."""
    last: dict[str, int] = {}
    for at, index in enumerate(order):
        if isinstance(index, int):
            last.update((root(value), at) for value in (*step.ops[index].reads, *step.ops[index].writes))
    if consumed:
        for at, sources in deliveries.items():
            last.update((source, max(at, last.get(source, at))) for source in sources)
    numbers = list(step.sources) + [name for op in step.ops for name in op.writes]
    gone = {trip[0]: (trip[1], at) for at, trip in enumerate(trips) if trip[0] in step.parameters and trip[3] == -1}
    handed = {value: memory for value, memory, *_ in reversed(step.pages) if value in step.gradients.values()}
    for at, value in enumerate(sorted(handed, key=numbers.index)):
        gone[value] = handed[value], len(trips) + at
    by_position: dict[int, list[tuple[str, str, int]]] = {}
    for value in sorted(gone, key=numbers.index):
        by_position.setdefault(last[root(value)], []).append((value, *gone[value]))
    return by_position


def resident(sizes: dict[str, int], trips: list[Trip]) -> dict[str, int]:
    """Bytes of parameters on the device when the step begins; empty if no page has an effect."""
    between = {trip[0] for trip in trips if trip[3] == -1}
    paged = any(trip[0] in sizes for trip in trips)
    return {name: nbytes for name, nbytes in sizes.items() if paged and name not in between}


def paged_parameters(sizes: dict[str, int], trips: list[Trip]) -> dict[str, int]:
    """Bytes of paged parameters in each memory, throughout the step."""
    nbytes: dict[str, int] = {}
    for name, memory in {trip[0]: trip[1] for trip in reversed(trips) if trip[0] in sizes}.items():
        nbytes[ACCOUNTS[memory]] = nbytes.get(ACCOUNTS[memory], 0) + sizes[name]
    return nbytes


class Lanes:
    """End times of copies."""

    def __init__(self, step: Step) -> None:
        self._lanes = {**_LANES, **step.file.get("lanes", {})}
        self._busy: dict[tuple[str, str], int] = {}  # until when a lane is
        self._over: dict[tuple[str, int], int] = {}  # by direction and trip

    def wait(self, kind: str, memory: str, trip: int, nbytes: int, now: int) -> int:
        """Waiting time of an event."""
        direction = "out" if kind in ("page_out", "page_gone") else "back"
        if kind in ("page_gone", "page_ready"):
            return max(0, self._over.get((direction, trip), now) - now)
        lane = self._lanes[memory]
        start = max(now, self._busy.get((memory, direction), 0))
        over = start + lane.get("latency", 0) - -nbytes * 10**9 // lane[direction]
        self._busy[memory, direction] = self._over[direction, trip] = over
        return 0
