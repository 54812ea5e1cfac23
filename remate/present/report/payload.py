"""The data of the page's script, as compact JSON: the contents of memory at every moment.

The page counts events that take time or memory: runs, recomputations, buffer updates, the forward/backward boundary.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from remate_runtime.display import thin
from remate_runtime.link import BackwardStart, Computation, RecomputeRun, Update
from remate_runtime.support.plain_text import plain

from ...schedule_tools.analysis import Analysis, unnamed
from ...schedule_tools.names import owners
from ...schedule_tools.roles import ROLES, Roles
from ...step_measurement.memory_trace import MemoryTrace
from .scene import Scene

_BUCKETS = 2000  # of curves that the page only draws


class _Table:
    """Distinct texts by number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


class _FullIds:
    """Full ids as (instance, local name), because instances of a block repeat its local names."""

    def __init__(self, opened: Analysis) -> None:
        self.graph = opened.graph
        self.places = [place.id for place in opened.expanded.places]
        numbers = {place: at for at, place in enumerate(self.places)}
        self.home = [numbers[place.id] for place in owners(opened)]
        self.local = _Table()

    def pair(self, text: str, operation: int) -> list[int]:
        place = self.home[operation] if operation >= 0 else -1
        prefix = f"{self.places[place]}." if place >= 0 else ""
        if not text.startswith(prefix):
            place, prefix = -1, ""
        return [place, self.local.number(text[len(prefix) :])]


def payload(opened: Analysis, scene: Scene, trace: MemoryTrace | None) -> dict[str, Any]:
    """Return plain data for JSON. Parallel lists represent lists of records."""
    graph, timeline = opened.graph, opened.timeline
    events = opened.linked.events
    shown = [at for at, event in enumerate(events) if isinstance(event, Computation | Update | BackwardStart)]
    flags = bytearray(len(events))
    for at in shown:
        flags[at] = 1
    rank = [number - 1 for number in accumulate(flags)]
    events_shown = [events[at] for at in shown]
    used = sorted({event.op for event in events_shown if isinstance(event, Computation)})
    number = {op: at for at, op in enumerate(used)}
    names, overloads, sources = _FullIds(opened), _Table(), _Table()
    pairs = [names.pair(graph.operations[op].id, op) for op in used]
    ops = {
        "place": [place for place, _ in pairs],
        "local": [local for _, local in pairs],
        "op": [overloads.number(graph.operations[op].op) for op in used],
        "source": [sources.number(graph.operations[op].source) for op in used],
        "ns": [graph.operations[op].ns for op in used],
        "workspace": [graph.operations[op].workspace for op in used],
    }
    return {
        "budget": opened.schedule.solve.budget,
        "peak": rank[timeline.peak_at] if shown else 0,
        "backward_start": rank[timeline.backward_start] if shown else 0,
        "span": scene.span,
        "top": scene.top,
        "costed": timeline.time > 0,
        "roles": list(ROLES),
        "places": names.places,
        "ops": ops,
        "steps": {
            "op": [number[event.op] if isinstance(event, Computation) else -1 for event in events_shown],
            "again": [at for at, event in enumerate(events_shown) if isinstance(event, RecomputeRun)],
            "during": [timeline.during[at] for at in shown],
            "after": [timeline.after[at] for at in shown],
        },
        "held": _held(opened, names, rank),
        "locals": list(names.local.texts),
        "overloads": list(overloads.texts),
        "sources": [plain(source) for source in sources.texts],
        "keepAll": _thinned(scene.baseline.times, scene.baseline.memory),
        "measured": _thinned(*scene.measured) if trace is not None else None,
    }


def _held(opened: Analysis, names: _FullIds, rank: list[int]) -> dict[str, list[Any]]:
    """Return the stretches of held memory as columns, in the order of their first steps.

    A stretch is a content of a storage: its first step (as a difference to the previous stretch), further steps, bytes,
    role, name and type.
    """
    roles, types = Roles(opened), _Table()
    numbers = {role: at for at, role in enumerate(ROLES)}
    rows: list[tuple[int, ...]] = []
    values = opened.graph.values
    for allocation, contents in opened.contents.items():
        if not allocation.nbytes:
            continue
        ends = [rank[start] - 1 for start, _ in contents[1:]] + [rank[allocation.death - 1]]
        for (start, value), end in zip(contents, ends, strict=True):
            if end < rank[start]:
                continue
            about = None if value is None else values[value]
            name = about.name if about else unnamed(allocation)
            place, local = names.pair(name, about.producer if about else -1)
            kind = types.number(str(about.type) if about else "")
            row = (rank[start], end - rank[start], allocation.nbytes, numbers[roles.role(allocation, value)])
            rows.append((*row, place, local, kind))
    rows.sort(key=lambda row: row[0])
    firsts = [row[0] for row in rows]
    columns: dict[str, list[Any]] = {"first": [b - a for a, b in zip([0, *firsts], firsts, strict=False)]}
    for at, key in enumerate(("more", "bytes", "role", "place", "local", "type"), start=1):
        columns[key] = [row[at] for row in rows]
    return columns | {"types": list(types.texts)}


def _thinned(times: list[int], levels: list[int]) -> list[list[int]]:
    return list(thin(times, levels, _BUCKETS))


def script_text(data: dict[str, Any]) -> str:
    """Return JSON that is safe inside a <script> element."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII: no line separators of JavaScript either
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
