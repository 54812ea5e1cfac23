"""Checks that a file takes no more time and memory than its size and its expansion allow. More is a bug of the reader."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import expand, lay_out
from remate_runtime.format import decode
from remate_runtime.link import link

from .bombs import allowed_bytes, allowed_seconds

_MEMORY = Path("/proc/self/status")
_FORGET = Path("/proc/self/clear_refs")


def expanded(data: bytes) -> int:
    """Number of operations, instances, events, parameters and buffers in the expanded file, as far as expansion
    succeeds."""
    count = 0
    try:
        schedule = decode(data)
        count = len(schedule.model.parameters) + len(schedule.model.buffers)
        places, _ = lay_out(schedule)
        count += sum(1 + len(p.block.forward) + len(p.block.backward) for p in places)
        step = expand(schedule)
        count += len(link(step.graph, step.recomputes).events)
    except ScheduleError:
        pass
    return count


def within_its_share(data: bytes, work: Callable[[], object]) -> None:
    """Run `work`. Raises AssertionError if it takes more CPU seconds or memory than `data` allows."""
    held, start = _start(), time.process_time()
    work()
    seconds, grown = time.process_time() - start, _peak() - held
    if seconds > allowed_seconds(len(data)) or grown > allowed_bytes(len(data)):
        share = expanded(data)
        assert seconds <= allowed_seconds(len(data), share), f"{seconds:.1f} s for {len(data)} bytes"
        assert grown <= allowed_bytes(len(data), share), f"{grown >> 20} MiB for {len(data)} bytes"


def _start() -> int:
    """Reset the recorded peak if the system can (Linux), and return the memory of the process in bytes."""
    if _FORGET.exists():
        _FORGET.write_text("5")
    return _peak()


def _peak() -> int:
    """Peak memory of this process since `_start`, in bytes; 0 if the system does not report it."""
    if not _MEMORY.exists():
        return 0
    return int(_MEMORY.read_text().partition("VmHWM:")[2].split()[0]) << 10
