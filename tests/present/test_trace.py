"""The predicted step as Perfetto and torch's memory viewer read it."""

from __future__ import annotations

import json
import pickle
import pickletools
from typing import Any

from torch.cuda import _memory_viz

from remate.present.trace import perfetto, snapshot, snapshot_bytes
from remate.schedule_tools.analysis import Analysis
from remate_runtime.link.events import RecomputeRun, Run

# What the viewer's own reader of pickles knows.
_OPCODES = set(
    "APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE PROTO SETITEMS "
    "SHORT_BINUNICODE STOP TUPLE2 APPEND NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1 "
    "TUPLE3 "
    "LONG_BINPUT LIST DICT SETITEM".split()
)


def of(data: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event["ph"] == phase]


def test_slices_are_the_executions(mlp: Analysis) -> None:
    data = perfetto(mlp)
    operations = mlp.graph.operations
    steps = [event for event in mlp.linked.events if isinstance(event, Run | RecomputeRun)]
    slices = [event for event in of(data, "X") if event["cat"] != "block"]
    assert [event["name"] for event in slices] == [operations[s.op].id for s in steps]
    assert [event["tid"] == 3 for event in slices] == [isinstance(s, RecomputeRun) for s in steps]
    assert abs(sum(event["dur"] for event in slices) * 1000 - mlp.timeline.time) < len(slices)


def test_slices_of_one_track_nest(mlp: Analysis) -> None:
    for track in (1, 2, 3):
        around: list[float] = []
        for event in (e for e in of(perfetto(mlp), "X") if e["tid"] == track):
            start, end = event["ts"], event["ts"] + event["dur"]
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1] + 1e-6
            around.append(end)


def test_counters(mlp: Analysis) -> None:
    memory = [event for event in of(perfetto(mlp), "C") if event["name"] == "memory"]
    assert max(event["args"]["bytes"] for event in memory) == mlp.timeline.peak
    assert [event["ts"] for event in memory] == sorted(event["ts"] for event in memory)
    budget = [event["args"]["bytes"] for event in of(perfetto(mlp), "C") if event["name"] == "budget"]
    assert set(budget) == {mlp.schedule.solve.budget}


def test_the_same_each_time(mlp: Analysis) -> None:
    assert json.dumps(perfetto(mlp)) == json.dumps(perfetto(mlp))
    assert snapshot_bytes(mlp) == snapshot_bytes(mlp)


def test_snapshot_has_the_predicted_peak(mlp: Analysis) -> None:
    (events,) = snapshot(mlp)["device_traces"]
    level = peak = 0
    live: set[int] = set()
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live.add(event["addr"])
            level += event["size"]
        if event["action"] == "free_completed":
            live.remove(event["addr"])
            level -= event["size"]
        peak = max(peak, level)
    assert peak == mlp.timeline.peak
    blocks = [b for s in snapshot(mlp)["segments"] for b in s["blocks"]]
    assert live == {b["address"] for b in blocks if b["state"] == "active_allocated"}


def test_torchs_own_tools_read_the_snapshot(mlp: Analysis) -> None:
    data = pickle.loads(snapshot_bytes(mlp))
    assert "segments: 1" in _memory_viz.segsum(data)  # which checks that the sizes add up
    assert "cudaMalloc" in _memory_viz.trace(data)
    assert "snapshot.pickle" in _memory_viz.trace_plot(data)
    assert "snapshot.pickle" in _memory_viz.segment_plot(data)
    assert _memory_viz.memory(data, format_flamegraph=lambda lines: lines)


def test_the_viewer_reads_the_pickle(mlp: Analysis) -> None:
    data = snapshot_bytes(mlp)
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= _OPCODES
    events = pickle.loads(data)["device_traces"][0]
    assert "unknown" in {event["category"] for event in events}
    assert all({"action", "addr", "size", "stream", "frames"} <= set(event) for event in events)
