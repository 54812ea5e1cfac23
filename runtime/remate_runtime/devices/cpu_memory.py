"""What is allocated on the CPU while something runs, from the memory events of torch's profiler."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any

import torch
from torch.autograd import profiler

Allocated = tuple[int, int, int]  # time in ns, address, bytes: positive where allocated, negative where freed

_END = "remate: end of what is measured"
# What the profiler itself says on stderr whenever it starts or stops; nothing that a user could act on.
_CHATTER = (
    b"USDT:",
    b"Memory block of unknown size was allocated before the profiling started",
    b"Failed to recover relationship between all profiler and kineto events",
)


def peak_on_cpu(fn: Callable[[], Any]) -> int:
    """Run `fn` once; the peak of bytes allocated on the CPU while it runs, above the level at its start. Memory that
    was allocated before and freed by it is not taken off. Not for use inside another profiler."""
    found = changes(allocations_of(fn, lambda name, at: None))
    return max(accumulate((change for _, change in found), initial=0))


def changes(events: Iterable[Allocated]) -> Iterator[tuple[int, int]]:
    """(time, bytes): allocated (positive) and freed (negative), in the order of `events`.

    A free counts only if its block was allocated in `events`: for older blocks the profiler knows no size, or that of
    another block which an earlier session saw at the same address.
    """
    held: dict[int, int] = {}
    for at, address, size in events:
        if size >= 0:
            held[address] = size
            yield at, size
        elif address in held:
            yield at, -held.pop(address)


class AllocationLog:
    """Allocations and frees from `start` to `stop`, on the thread that calls both and those of the autograd engine."""

    def __init__(self) -> None:
        self._session = profiler.profile(profile_memory=True)

    def start(self) -> None:
        with _quiet():
            before = torch.empty(1)
            self._session.__enter__()
            del before  # the profiler warns, once per process, of blocks older than itself: let it do so here

    def stop(self) -> None:
        with _quiet():
            self._session.__exit__(None, None, None)

    def events(self, seen: Callable[[str, int], Any] = lambda name, at: None) -> list[Allocated]:
        """In time order, after `stop`. seen: is reported name and time of every other event."""
        result = self._session.kineto_results
        tree = result.experimental_event_tree() if result else []
        return sorted(_allocations(tree, seen), key=lambda event: event[0])

    def mark(self) -> None:
        """What comes after this does not count for the peak."""
        with profiler.record_function(_END):
            pass

    def peak(self) -> int:
        """The peak of bytes, above the level at `start`."""
        marks: list[int] = []
        events = self.events(lambda name, at: marks.append(at) if name == _END else None)
        counted = (event for event in events if not marks or event[0] <= marks[0])
        return max(accumulate((change for _, change in changes(counted)), initial=0))


def allocations_of(fn: Callable[[], Any], seen: Callable[[str, int], Any]) -> list[Allocated]:
    """Allocations and frees while `fn` ran, in time order. seen: is reported name and time of every other event."""
    log = AllocationLog()
    log.start()
    try:
        fn()
    finally:
        log.stop()
    return log.events(seen)


def _allocations(nodes: list[Any], seen: Callable[[str, int], Any]) -> Iterator[Allocated]:
    """Every allocation event under `nodes`; `seen` is reported the others."""
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        stack.extend(reversed(node.children))
        fields = node.typed[1]
        if type(fields).__name__ == "_ExtraFields_Allocation" and fields.device.type == "cpu":
            yield node.start_time_ns, fields.ptr, fields.alloc_size
        else:
            seen(node.name, node.start_time_ns)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's own chatter off stderr; whatever else is written there still appears."""
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # no stderr: nothing to keep clean
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
