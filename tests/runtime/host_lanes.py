"""Pages to pinned memory without a GPU: copies on the CPU that happen as late as they may.

A copy happens when the current stream waits for it, and not before. So a step that does not wait is found out: what is to
come back is NaN until then, and what left has been freed or written to. Each copy must also begin behind the work of the
current stream, so a lane has to wait for it anew. `faults` says what a GPU would not forgive.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from remate_runtime.engine.eager.host_pages import bytes_of


class Event:
    """Its place in the queue of a lane; of the current stream, which is never behind, only the time."""

    def __init__(self) -> None:
        self.stream: Lane | Current | None = None
        self.at = 0
        self.happened = 0

    def synchronize(self) -> None:
        assert self.stream is not None, "the event was not recorded"
        if isinstance(self.stream, Lane):
            self.stream.run(self.at)

    def elapsed_time(self, end_event: Event) -> float:
        return (end_event.happened - self.happened) / 1e6


class Current:
    """The stream that operations run on: the CPU."""

    def record_event(self, event: Event) -> None:
        event.stream, event.happened = self, time.perf_counter_ns()

    def wait_event(self, event: Event) -> None:
        event.synchronize()


class _Copy:
    """Addresses, so that nothing is kept alive but pinned memory."""

    def __init__(self, to: torch.Tensor, source: torch.Tensor, pinned: torch.Tensor, out: bool) -> None:
        self.to, self.source, self.nbytes = to.data_ptr(), source.data_ptr(), to.nbytes
        self.pinned, self.out, self.device = pinned, out, StorageWeakRef((source if out else to).untyped_storage())

    def run(self, faults: list[str]) -> None:
        if not self.device.expired():
            ctypes.memmove(self.to, self.source, self.nbytes)
        elif self.out:
            faults.append("a storage is freed before it has been copied out")
            ctypes.memset(self.to, 0xFF, self.nbytes)
        else:
            faults.append("a copy back writes to a storage that is freed")


class _Wait:
    """Until another lane has come to an event."""

    def __init__(self, event: Event) -> None:
        self.event = event


class Lane:
    """A queue of copies and events."""

    def __init__(self, lanes: DelayedLanes) -> None:
        self._lanes, self._queue, self._done = lanes, list[_Copy | _Wait | Event | torch.Tensor](), 0
        self._behind = False  # the current stream, as far as it was given work

    def record_event(self, event: Event) -> None:
        self._queue.append(event)
        event.stream, event.at, self._behind = self, len(self._queue), False

    def wait_event(self, event: Event) -> None:
        if isinstance(event.stream, Current):
            self._behind = True
        elif event.stream is not self:
            self._queue.append(_Wait(event))

    def copy(self, copy: _Copy) -> None:
        if not self._behind:
            self._lanes.faults.append("a copy does not begin behind the work of the current stream")
        self._queue.append(copy)

    def keep(self, tensor: torch.Tensor) -> None:
        self._queue.append(tensor)

    def run(self, until: int) -> None:
        while self._done < until:
            entry = self._queue[self._done]
            if isinstance(entry, _Copy):
                entry.run(self._lanes.faults)
            elif isinstance(entry, Event):
                entry.happened = time.perf_counter_ns()
            elif isinstance(entry, _Wait):
                entry.event.synchronize()
            self._queue[self._done] = Event()  # drops what it held
            self._done += 1

    def finish(self) -> None:
        self.run(len(self._queue))


class DelayedLanes:
    """A `HostLanes` of the CPU.

    Attributes:
        allocated: Sizes of the pinned memory, in order.
        faults: What went wrong.
    """

    def __init__(self, device: torch.device) -> None:
        self.allocated: list[int] = []
        self.faults: list[str] = []
        self.copied = 0
        self.kept = 0
        self._lanes: list[Lane] = []

    def current(self) -> Current:
        return Current()

    def beside(self) -> Lane:
        self._lanes.append(Lane(self))
        return self._lanes[-1]

    def event(self) -> Event:
        return Event()

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.allocated.append(nbytes)
        return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)  # unseen by torch's profiler

    def bytes_of(self, tensor: torch.Tensor, first: int, nbytes: int) -> torch.Tensor:
        return bytes_of(tensor, first, nbytes)

    def copy(self, stream: Lane, to: torch.Tensor, source: torch.Tensor) -> None:
        assert to.dtype == source.dtype == torch.uint8
        assert to.shape == source.shape
        out = stream is self._lanes[0]
        self.copied += 1
        if not out:
            ctypes.memset(to.data_ptr(), 0xFF, to.nbytes)
        stream.copy(_Copy(to, source, to if out else source, out))

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        self.kept += 1
        stream.keep(tensor)

    def finish(self) -> None:
        """Let all copies happen."""
        for lane in self._lanes:
            lane.finish()
