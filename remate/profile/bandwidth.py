"""Measures the speed of paging values, to the scratch file or to pinned memory, with the copies of the runtime."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from remate_runtime.engine import HostPager, HostPages, Pager, StepPages
from remate_runtime.format import Lane

_LARGE, _SMALL = 64 << 20, 4 << 10  # bytes
_TIMES = 4  # the first copy starts the threads


def measured_lane() -> Lane:
    """Return the lane to the disk: bytes per second in each direction, and ns of a very small copy.

    It is the best of a few measurements, because other load is no property of the disk.

    Raises:
        ExecutionError: The disk has no room.
    """
    pager = Pager({0: ("a large tensor", _LARGE), 1: ("a small tensor", _SMALL)}, 0)
    large, small = torch.zeros(_LARGE, dtype=torch.uint8), torch.zeros(_SMALL, dtype=torch.uint8)
    copied = [(_copied(pager.open(), 0, large), _copied(pager.open(), 1, small)) for _ in range(_TIMES)]
    latency = min(sum(spent) for _, spent in copied) // 2

    def speed(direction: int) -> int:
        return _LARGE * 1_000_000_000 // max(1, min(spent[direction] for spent, _ in copied) - latency)

    return Lane(out=speed(0), back=speed(1), latency=latency)


def measured_host_lane(
    device: torch.device, synchronize: Callable[[torch.device], object] = torch.cuda.synchronize
) -> Lane:
    """Return the lane to pinned memory of the host, with copies in both directions at once, as in `measured_lane`.

    Args:
        device: A CUDA device.
        synchronize: Waits for the work of the device.

    Raises:
        ExecutionError: There is no pinned memory.
    """
    sizes = {0: ("a large tensor", _LARGE), 1: ("a large tensor", _LARGE), 2: ("a small tensor", _SMALL)}
    pager, sizes_of = HostPager(sizes, 0, device), (_LARGE, _LARGE, _SMALL)
    away, leaves, small = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for nbytes in sizes_of)
    pages, large, least = pager.open(), list[int](), list[int]()

    def timed(copies: Callable[[], object]) -> int:
        synchronize(device)
        began = time.perf_counter_ns()
        copies()
        synchronize(device)
        return time.perf_counter_ns() - began

    for _ in range(_TIMES):
        pages.out(0, away)
        pages.wait(0)
        large.append(timed(lambda: _both(pages, leaves)))
        pages.back(1)
        pages.wait(1)
        least.append(timed(lambda: _out(pages, small)))
        pages.back(2)
        pages.wait(2)
    latency = min(least)
    speed = _LARGE * 1_000_000_000 // max(1, min(large) - latency)
    return Lane(out=speed, back=speed, latency=latency)


def _both(pages: HostPages, leaves: torch.Tensor) -> None:
    pages.out(1, leaves)
    pages.back(0)
    pages.wait(1)
    pages.wait(0)


def _out(pages: HostPages, small: torch.Tensor) -> None:
    pages.out(2, small)
    pages.wait(2)


def _copied(pages: StepPages, trip: int, tensor: torch.Tensor) -> tuple[int, int]:
    """Return the ns to copy a tensor to the scratch file, and back."""
    began = time.perf_counter_ns()
    pages.out(trip, tensor)
    pages.wait(trip)
    left = time.perf_counter_ns()
    pages.back(trip)
    pages.wait(trip)
    return left - began, time.perf_counter_ns() - left
