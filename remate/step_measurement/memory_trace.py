"""The file of a measured memory curve: `remate run --memory-trace` writes it and `remate report --trace` reads it.

{"format": "remate.memory-trace", "version": 1, "schedule": NAME, "fingerprint": "sha256:…", "device": "cpu",
 "backward_start": NS, "times": [NS, …], "bytes": [BYTES, …]}

times: nanoseconds since the step began, ascending. bytes: allocated on the device from then on, above the level at the
start. backward_start: when forward had returned. Does not require torch.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from remate_runtime.errors import RemateError
from remate_runtime.format import Schedule
from remate_runtime.support.files import open_regular
from remate_runtime.support.plain_text import plain

FORMAT = "remate.memory-trace"
VERSION = 1
MAX_BYTES = 64 << 20  # of the file
_LIMIT = 1 << 62


class MemoryTraceError(RemateError):
    """Raised if the file of a memory curve cannot be used."""


class MemoryTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured curve. schedule, fingerprint: of the schedule that ran."""

    format: str
    version: int
    schedule: str
    fingerprint: str
    device: str
    backward_start: int
    times: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.bytes, default=0)


def memory_trace(schedule: Schedule, backward_start: int, times: list[int], levels: list[int]) -> MemoryTrace:
    """Return the measured curve of a step by `schedule`."""
    model = schedule.model
    return MemoryTrace(
        FORMAT, VERSION, schedule.name, model.fingerprint, model.device, backward_start, tuple(times), tuple(levels)
    )


def encode(trace: MemoryTrace) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.encode(trace) + b"\n"


def load_memory_trace(path: str, schedule: Schedule) -> MemoryTrace:
    """Read a curve of a step of `schedule`. Raises MemoryTraceError, OSError."""
    with open_regular(path) as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise MemoryTraceError(f"{path}: more than {MAX_BYTES} bytes: this is no memory trace")
    try:
        trace = msgspec.json.decode(text, type=MemoryTrace)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = "write one with `remate run S.json --model FILE.py:build --memory-trace OUT.json`"
        raise MemoryTraceError(f"{path}: no memory trace: {plain(str(error))}\n  hint: {hint}") from None
    fault = _fault(trace)
    if fault:
        raise MemoryTraceError(f"{path}: {fault}")
    if trace.fingerprint != schedule.model.fingerprint:
        raise MemoryTraceError(
            f"{path}: measured with another step: {trace.schedule[:80]!r} has fingerprint {trace.fingerprint[:80]!r}, "
            f"this schedule {schedule.model.fingerprint!r}\n  hint: measure this schedule again"
        )
    return trace


def _fault(trace: MemoryTrace) -> str:
    if trace.format != FORMAT:
        return f"format is {trace.format[:80]!r}, not {FORMAT!r}"
    if trace.version != VERSION:
        return f"version {trace.version} of the format is not known here, only {VERSION}"
    if len(trace.times) != len(trace.bytes) or not trace.times:
        return f"{len(trace.times)} times and {len(trace.bytes)} bytes: give as many of each, at least one"
    numbers = (trace.backward_start, trace.times[0], trace.times[-1], min(trace.bytes), max(trace.bytes))
    if any(not 0 <= number < _LIMIT for number in numbers):
        return "times and bytes must not be negative or huge"
    if any(later < earlier for earlier, later in pairwise(trace.times)):
        return "times must ascend"
    return ""
