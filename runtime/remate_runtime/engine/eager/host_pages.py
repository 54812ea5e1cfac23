"""Copies values of a step on CUDA to pinned memory of the host, and back.

A step with paged values owns pinned memory from its forward to the end of its backward. Later steps reuse it. Copies
run on two streams beside the operations, one for each direction, and the host waits for none of them:

- A copy begins after all work that the current stream received before it.
- The current stream waits for a copy out before the storage is freed, so that nothing writes to the storage meanwhile.
- The current stream waits for a copy back before the value is read.
- A step that reuses pinned memory of an earlier step copies out after the copies of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import torch

from ...errors import ExecutionError
from ..compiled_step import MeasuredLane
from .page_copies import Away, Direction, Moved, Place, copied_bytes, end_of, placed

_ALIGNED = 512  # alignment of places, in bytes
_UNIT = 1 << 20  # pinned memory is allocated in multiples of it, in bytes
_NOTHING: Mapping[int, Any] = {}


class CopyEvent(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class CopyStream(Protocol):
    """A queue of work on a device."""

    def record_event(self, event: Any) -> Any: ...

    def wait_event(self, event: Any) -> None: ...


class HostLanes(Protocol):
    """What paging needs of a device."""

    def current(self) -> CopyStream:
        """Return the stream that operations run on."""
        ...

    def beside(self) -> CopyStream:
        """Return a stream for copies in one direction."""
        ...

    def event(self) -> CopyEvent:
        """Return a new event that measures time."""
        ...

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return bytes in pinned memory. Raises RuntimeError if there are none. The memory may be dropped while copies
        that use it are running."""
        ...

    def bytes_of(self, tensor: torch.Tensor, first: int, nbytes: int) -> torch.Tensor:
        """Return bytes of a tensor's storage, from byte `first` of the storage on."""
        ...

    def copy(self, stream: CopyStream, to: torch.Tensor, source: torch.Tensor) -> None:
        """Give a copy of bytes to a stream."""
        ...

    def keep(self, tensor: torch.Tensor, stream: CopyStream) -> None:
        """Let nothing else take the storage of a tensor, once it is freed, before the work that the stream has now is
        complete."""
        ...


class CudaLanes:
    """The `HostLanes` of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def beside(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def bytes_of(self, tensor: torch.Tensor, first: int, nbytes: int) -> torch.Tensor:
        return bytes_of(tensor, first, nbytes)

    def copy(self, stream: Any, to: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


def bytes_of(tensor: torch.Tensor, first: int, nbytes: int) -> torch.Tensor:
    """Return bytes of a tensor's storage, from byte `first` of the storage on."""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(tensor.untyped_storage(), first, (nbytes,), (1,))


class NoCopies:
    """The `HostLanes` of a dry run, on tensors without memory: it copies nothing."""

    def __init__(self, device: torch.device) -> None:
        self._nothing = torch.empty(0, dtype=torch.uint8, device="meta")

    def current(self) -> CopyStream:
        return _Nowhere()

    def beside(self) -> CopyStream:
        return _Nowhere()

    def event(self) -> CopyEvent:
        return _Nowhere()

    def pinned(self, nbytes: int) -> torch.Tensor:
        return self._nothing

    def bytes_of(self, tensor: torch.Tensor, first: int, nbytes: int) -> torch.Tensor:
        return self._nothing

    def copy(self, stream: CopyStream, to: torch.Tensor, source: torch.Tensor) -> None:
        pass

    def keep(self, tensor: torch.Tensor, stream: CopyStream) -> None:
        pass


class _Nowhere:
    def record_event(self, event: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: Any) -> float:
        return 0.0


LanesOf = Callable[[torch.device], HostLanes]
# By type of device. Values of other devices cannot be paged to the host.
HOST_LANES: dict[str, LanesOf] = {"cuda": CudaLanes}


class _Piece(NamedTuple):
    """A part of a place: number of the chunk of pinned memory, and the bytes in it."""

    chunk: int
    start: int
    stop: int


class PinnedMemory:
    """Pinned memory that the steps of a model have given back.

    PyTorch would keep it, too, but hand it out again only when the device has done all copies. The host is ahead of the
    device, so that several steps would have memory at once. Here the next step's copies wait on the device.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[_Chunk]] = {}

    def take(self, lanes: HostLanes, sizes: Iterable[int], out: CopyStream) -> list[torch.Tensor]:
        """Return chunks. Copies of the stream `out` then wait for older ones. Raises RuntimeError if there is none."""
        taken: list[_Chunk] = []
        try:
            for nbytes in sizes:
                free = self._free.get(nbytes)
                taken.append(free.pop() if free else _Chunk(lanes.pinned(nbytes), ()))
        except RuntimeError:
            for chunk in taken:
                self.give([chunk.memory], chunk.busy)
            raise
        for event in dict.fromkeys(event for chunk in taken for event in chunk.busy):
            out.wait_event(event)
        return [chunk.memory for chunk in taken]

    def give(self, memory: Iterable[torch.Tensor], busy: Sequence[CopyEvent]) -> None:
        """Take chunks back. busy: events after the copies that use them."""
        for chunk in memory:
            self._free.setdefault(chunk.nbytes, []).append(_Chunk(chunk, busy))


class _Chunk(NamedTuple):
    memory: torch.Tensor
    busy: Sequence[CopyEvent]


class HostPager:
    """Creates the pages of each run of a step.

    Attributes:
        slot: Slot of the pages.
    """

    def __init__(
        self,
        sizes: Mapping[int, tuple[str, int]],
        slot: int,
        device: torch.device,
        lanes: LanesOf | None = None,
        pinned: PinnedMemory | None = None,
    ) -> None:
        """Reserve places in pinned memory.

        Args:
            sizes: Name and bytes of each paged result of forward, by trip.
            slot: Slot of the pages.
            device: The device of the step.
            lanes: Returns the lanes of the device. None: those of `HOST_LANES`.
            pinned: Memory that the steps of a model share, one after the other. None: the step has its own.
        """
        self.slot = slot
        self._device, self._lanes_of, self._pinned = device, lanes, pinned or PinnedMemory()
        self._places = placed(sizes, _ALIGNED)
        self._chunks = _chunks(end_of(self._places.values()))
        self._parts = {trip: tuple(_parts(place, self._chunks)) for trip, place in self._places.items()}
        self._lanes: HostLanes | None = None
        self._streams: dict[Direction, CopyStream] = {}
        self._latest = Moved()

    def open(self, sources: Mapping[int, Any] = _NOTHING) -> HostPages:
        """Return the pages of a run that begins.

        Raises:
            ExecutionError: There is no pinned memory.
        """
        if self._lanes is None:
            lanes = (self._lanes_of or HOST_LANES[self._device.type])(self._device)
            self._streams, self._lanes = {"out": lanes.beside(), "back": lanes.beside()}, lanes
        try:
            memory = self._pinned.take(self._lanes, self._chunks, self._streams["out"])
        except RuntimeError as error:
            raise ExecutionError(
                f"cannot allocate {sum(self._chunks):,} bytes of pinned memory for paged values: "
                f"{str(error).splitlines()[0]}"
                "\n  free memory of the host, or plan again with a smaller host_budget (--host-budget); nothing has "
                "run yet"
            ) from None
        self._latest = Moved()
        run = self._lanes, self._streams, self._latest, self._pinned
        return HostPages(memory, self._places, self._parts, *run)

    def paged(self) -> tuple[MeasuredLane, ...]:
        """Return what the latest run has moved. It waits for the copies of that run."""
        return self._latest.lanes()


def _chunks(nbytes: int) -> list[int]:
    """Divide pinned memory into powers of two, since PyTorch's allocator rounds up to one. The largest come first."""
    units = -(-nbytes // _UNIT)
    return [_UNIT << bit for bit in range(units.bit_length() - 1, -1, -1) if units >> bit & 1]


def _parts(place: Place, chunks: Sequence[int]) -> Iterator[_Piece]:
    first = 0  # byte of the chunk
    for number, nbytes in enumerate(chunks):
        start, stop = max(place.offset, first), min(place.offset + place.nbytes, first + nbytes)
        if start < stop:
            yield _Piece(number, start - first, stop - first)
        first += nbytes


class _OpenCopy(NamedTuple):
    """A copy that the step has not waited for. tensor: keeps the storage on the device."""

    direction: Direction
    tensor: torch.Tensor
    done: CopyEvent


class HostPages:
    """The pages of one run of a step."""

    def __init__(
        self,
        memory: Sequence[torch.Tensor],
        places: Mapping[int, Place],
        parts: Mapping[int, Sequence[_Piece]],
        lanes: HostLanes,
        streams: Mapping[Direction, CopyStream],
        moved: Moved,
        pinned: PinnedMemory,
    ) -> None:
        """Prepare for a run. memory: the chunks, which go back to `pinned`."""
        self._memory, self._places, self._parts = memory, places, parts
        self._lanes, self._streams, self._moved, self._pinned = lanes, streams, moved, pinned
        self._away: dict[int, Away] = {}
        self._running: dict[int, _OpenCopy] = {}

    def out(self, trip: int, tensor: torch.Tensor) -> None:
        """Start to copy a tensor to the host."""
        self._away[trip] = Away.of(tensor)
        self._start(trip, tensor, "out")

    def back(self, trip: int) -> torch.Tensor:
        """Start to copy from the host into a new tensor, and return it."""
        tensor = self._away.pop(trip).empty()
        self._start(trip, tensor, "back")
        return tensor

    def wait(self, trip: int) -> None:
        """Let the current stream wait until the copy is complete. The host does not wait."""
        running, here, reached = self._running.pop(trip), self._lanes.current(), self._lanes.event()
        here.record_event(reached)
        here.wait_event(running.done)
        self._moved.add_wait(running.direction, lambda done=running.done: _waited(reached, done))

    def _start(self, trip: int, tensor: torch.Tensor, direction: Direction) -> None:
        nbytes, lane = copied_bytes(tensor, self._places[trip]), self._streams[direction]
        ready, done = self._lanes.event(), self._lanes.event()
        self._lanes.current().record_event(ready)
        lane.wait_event(ready)
        for host, device in self._pairs(trip, tensor, nbytes):
            self._lanes.copy(lane, *((host, device) if direction == "out" else (device, host)))
        lane.record_event(done)
        self._running[trip] = _OpenCopy(direction, tensor, done)
        self._moved.add(direction, nbytes, 1, 0)

    def _pairs(self, trip: int, tensor: torch.Tensor, nbytes: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the bytes of a tensor in pinned memory and on the device, chunk by chunk."""
        first = int(tensor.storage_offset()) * tensor.element_size()
        end = first + nbytes
        for part in self._parts[trip]:
            size = min(part.stop - part.start, end - first)
            if size <= 0:
                return
            yield self._memory[part.chunk][part.start : part.start + size], self._lanes.bytes_of(tensor, first, size)
            first += size

    def __del__(self) -> None:
        # A step that is given up has not waited for its copies, and they may write to storages that are freed now.
        with suppress(Exception):
            for running in self._running.values():
                self._lanes.keep(running.tensor, self._streams[running.direction])
            busy = [self._lanes.event() for _ in self._streams]
            for stream, event in zip(self._streams.values(), busy, strict=True):
                stream.record_event(event)
            self._pinned.give(self._memory, busy)


def _waited(reached: CopyEvent, done: CopyEvent) -> int:
    done.synchronize()
    reached.synchronize()
    return max(0, int(reached.elapsed_time(done) * 1_000_000))
