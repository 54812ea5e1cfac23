"""Allocations on the CPU during a run, from the memory events of torch's profiler."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import accumulate
from typing import Any

import torch
from torch.autograd import profiler

from ..torch_private.execution import is_profiled

Allocated = tuple[int, int, int]  # time in ns, address, bytes: positive if allocated, negative if freed

_END = "remate: end of what is measured"
_STOP = "remate: the session stops"
_MAPPED = "remate: mapped"  # memory allocated in the meantime belongs to a file
_RESIDENT, _LEFT = "remate: resident ", "remate: left "  # bytes@address, of tensors that are mapped to files
# Messages of the profiler on stderr at its start and stop, which users cannot act on.
_CHATTER = (
    b"USDT:",
    b"Memory block of unknown size was allocated before the profiling started",
    b"Failed to recover relationship between all profiler and kineto events",
)


def peak_on_cpu(fn: Callable[[], Any]) -> int:
    """Run `fn` once and return the peak of bytes allocated on the CPU, above the level at its start.

    Freeing older memory does not reduce the peak. Not for use inside another profiler.
    """
    timed_changes = changes(allocations_of(fn, lambda name, at: None))
    return max(accumulate((change for _, change in timed_changes), initial=0))


def changes(events: Iterable[Allocated]) -> Iterator[tuple[int, int]]:
    """Yield (time, bytes): allocated (positive) and freed (negative), in the order of `events`.

    A free counts only if its block was allocated in `events`. For older blocks the profiler knows no size, or that of a
    different block which an earlier session saw at the same address.
    """
    sizes: dict[int, int] = {}
    for at, address, size in events:
        if size >= 0:
            sizes[address] = size
            yield at, size
        elif address in sizes:
            yield at, -sizes.pop(address)


class AllocationLog:
    """Allocations and frees from `start` to `stop`, on the calling thread and on autograd's threads."""

    def __init__(self) -> None:
        self._session: Any = profiler.profile(profile_memory=True)

    def start(self) -> None:
        with _quiet():
            before = torch.empty(1)
            self._session.__enter__()
            del before  # the profiler warns once per process about older blocks: trigger it here

    def stop(self) -> None:
        with profiler.record_function(_STOP):
            pass
        with _quiet():
            self._session.__exit__(None, None, None)

    def events(self, seen: Callable[[str, int], Any] = lambda name, at: None) -> list[Allocated]:
        """Return the events in order of time, after `stop`.

        Args:
            seen: Receives name and time of every other event.
        """
        result = self._session.kineto_results
        tree: list[Any] = result.experimental_event_tree() if result else []
        return sorted(_allocations(tree, seen), key=lambda event: event[0])

    def left_open(self) -> list[str]:
        """Return the names of ranges (`record_function`) that began in this session and go on after `stop`.

        While one of them goes on, no other session may run on this thread: at its end, torch would write into memory of
        this session, which is freed.
        """
        result = self._session.kineto_results
        return _above_stop(result.experimental_event_tree() if result else []) or []

    def mark(self) -> None:
        """Exclude what follows from the peak."""
        with profiler.record_function(_END):
            pass

    def peak(self) -> int:
        """Return the peak in bytes above the level at `start`."""
        marks: list[int] = []
        events = self.events(lambda name, at: marks.append(at) if name == _END else None)
        counted = (event for event in events if not marks or event[0] <= marks[0])
        return max(accumulate((change for _, change in changes(counted)), initial=0))


def _above_stop(nodes: list[Any]) -> list[str] | None:
    """Return the names of the events around the mark of `stop`, outermost first; None if it is not among `nodes`."""
    for node in reversed(nodes):
        if node.name == _STOP:
            return []
        above = _above_stop(node.children)
        if above is not None:
            return [node.name, *above]
    return None


def allocations_of(fn: Callable[[], Any], seen: Callable[[str, int], Any]) -> list[Allocated]:
    """Return the allocations and frees during `fn`, in order of time.

    Args:
        fn: Runs once.
        seen: Receives name and time of every other event.
    """
    log = AllocationLog()
    log.start()
    try:
        fn()
    finally:
        log.stop()
    return log.events(seen)


def note_mapped() -> AbstractContextManager[Any]:
    """Exclude allocations inside this context from a running measurement: their memory belongs to a file."""
    return profiler.record_function(_MAPPED) if is_profiled() else nullcontext()


def note_resident(tensor: torch.Tensor, resident: bool) -> None:
    """Count the memory of a tensor in a running measurement from here on, or no longer. For tensors that the allocator
    does not see."""
    if is_profiled():
        with profiler.record_function(f"{_RESIDENT if resident else _LEFT}{tensor.nbytes}@{tensor.data_ptr()}"):
            pass


def _noted(name: str, at: int) -> Allocated:
    nbytes, _, address = name.removeprefix(_RESIDENT).removeprefix(_LEFT).partition("@")
    return at, int(address), int(nbytes) if name.startswith(_RESIDENT) else -int(nbytes)


def _allocations(nodes: list[Any], seen: Callable[[str, int], Any]) -> Iterator[Allocated]:
    """Yield every allocation event under `nodes`, and pass the others to `seen`."""
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        if node.name == _MAPPED:
            continue
        stack.extend(reversed(node.children))
        fields = node.typed[1]
        if type(fields).__name__ == "_ExtraFields_Allocation" and fields.device.type == "cpu":
            yield node.start_time_ns, fields.ptr, fields.alloc_size
        elif node.name.startswith((_RESIDENT, _LEFT)):
            yield _noted(node.name, node.start_time_ns)
        else:
            seen(node.name, node.start_time_ns)


@contextmanager
def _quiet() -> Generator[None]:
    """Remove the profiler's messages from stderr; other output still appears."""
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # no stderr
        yield
        return
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            for line in caught:
                if not any(chatter in line for chatter in _CHATTER):
                    os.write(2, line)
