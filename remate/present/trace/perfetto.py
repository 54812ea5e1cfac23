"""The predicted step in the Trace Event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Operations are slices on three tracks (forward, backward, recomputations), inside the slices of their blocks. Memory and
budget are counters in bytes. Views take no time and are omitted. The format counts microseconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from remate_runtime.display import curve
from remate_runtime.link import PAGED_TO, Computation
from remate_runtime.support.plain_text import plain

from ...schedule_tools.analysis import Analysis, phase
from ...schedule_tools.names import owners

_PROCESS = 1
_TRACKS = {"forward": 1, "backward": 2, "recompute": 3}
_NAMES = {"forward": "forward", "backward": "backward", "recompute": "recomputes"}
_NS = 1000


def perfetto(opened: Analysis) -> dict[str, Any]:
    """Return deterministic plain data for JSON. Without costs, each operation takes a microsecond."""
    memory = curve(opened.linked, opened.timeline)
    scale = _NS if opened.timeline.time else 1
    events = [_metadata("process_name", 0, plain(opened.schedule.name))]
    for kind, track in _TRACKS.items():
        events.append(_metadata("thread_name", track, _NAMES[kind]))
        events.append({**_metadata("thread_sort_index", track, ""), "args": {"sort_index": track}})
    events += _slices(opened, memory.starts, memory.end, scale)
    events += _memory(opened, memory.starts, memory.end, scale)
    events += _lanes(opened, memory.starts, scale)
    solve, timeline = opened.schedule.solve, opened.timeline
    about = {
        "producer": "remate",
        "schedule": plain(opened.schedule.name),
        "peak_bytes": timeline.peak,
        "budget_bytes": solve.budget,
        "time_ns": timeline.time,
        "baseline_peak_bytes": opened.baseline.peak,
        "baseline_time_ns": opened.baseline.time,
    }
    return {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}


def _time(ns: int, scale: int) -> float:
    return round(ns / scale, 3)


def _metadata(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _slices(opened: Analysis, starts: list[int], end: int, scale: int) -> list[dict[str, Any]]:
    graph, home = opened.graph, owners(opened)
    ends = [*starts[1:], end]
    slices: list[dict[str, Any]] = []
    growing: dict[str, dict[str, Any]] = {}  # by track: the block slice that still grows
    for at, event in enumerate(opened.linked.events):
        if not isinstance(event, Computation):
            continue
        op, place = graph.operations[event.op], home[event.op]
        kind = phase(opened, at)
        start, stop = _time(starts[at], scale), _time(ends[at], scale)
        block = growing.get(kind)
        if kind == "recompute" or block is None or block["name"] != place.id:
            about = {"block": place.block_name, "plan": place.instance.plan}
            if kind == "recompute":  # recomputations of a block are apart in time, so they have no block slice
                block = None
            else:
                block = growing[kind] = _slice(place.id, "block", kind, start, stop, about)
                slices.append(block)
        if block is not None:
            block["dur"] = round(stop - block["ts"], 3)
        written = sum(graph.nbytes(v) for v in op.writes if v is not None and graph.root[v] == v)
        about = {"operator": op.op, "source": plain(op.source), "block": place.id, "output_bytes": written}
        about |= {"workspace_bytes": op.workspace, "memory_bytes": opened.timeline.during[at]}
        slices.append(_slice(op.id, kind, kind, start, stop, about))
    return slices


def _slice(name: str, category: str, kind: str, start: float, end: float, about: dict[str, Any]) -> dict[str, Any]:
    where = {"pid": _PROCESS, "tid": _TRACKS[kind]}
    return {"name": name, "cat": category, "ph": "X", **where, "ts": start, "dur": round(end - start, 3), "args": about}


def _memory(opened: Analysis, starts: list[int], end: int, scale: int) -> list[dict[str, Any]]:
    """Return counters of the memory during each event and after the last one, where it changes."""
    budget = opened.schedule.solve.budget
    counters = [_counter("budget", at, budget) for at in (0.0, _time(end, scale))]
    latest = -1
    for at, during in zip(starts, opened.timeline.during, strict=True):
        if during != latest:
            counters.append(_counter("memory", _time(at, scale), during))
        latest = during
    return [*counters, _counter("memory", _time(end, scale), opened.timeline.after[-1])]


def _lanes(opened: Analysis, starts: list[int], scale: int) -> list[dict[str, Any]]:
    """Return a track of copies for each lane, and a counter of paged bytes for each memory."""
    clock, events = opened.timeline.clock, list[dict[str, Any]]()
    if clock is None:
        return events
    tracks = {(lane.memory, lane.direction): len(_TRACKS) + 1 + at for at, lane in enumerate(clock.lanes)}
    for (to, direction), track in tracks.items():
        events.append(_metadata("thread_name", track, f"paged {direction}, {to}"))
        events.append({**_metadata("thread_sort_index", track, ""), "args": {"sort_index": track}})
    for copy in clock.copies:
        track, start, end = tracks[copy.memory, copy.direction], _time(copy.begin, scale), _time(copy.end, scale)
        where = {"pid": _PROCESS, "tid": track, "ts": start, "dur": round(end - start, 3)}
        about = {"bytes": opened.graph.nbytes(copy.value)}
        name = opened.graph.values[copy.value].name
        events.append({"name": name, "cat": "page", "ph": "X", **where, "args": about})
    for to, name in PAGED_TO.items():
        if name in opened.timeline.memories:
            levels = list(zip(starts, opened.timeline.memories[name].during, strict=True))
            changes = [levels[0], *(now for before, now in pairwise(levels) if before[1] != now[1])]
            events += [_counter(f"paged to the {to}", _time(at, scale), nbytes) for at, nbytes in changes]
    return events


def _counter(name: str, at: float, nbytes: int) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": _PROCESS, "tid": 0, "ts": at, "args": {"bytes": nbytes}}
