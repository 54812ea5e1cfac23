"""Measures the speed of paging values to the scratch file, with the copies that the runtime makes."""

from __future__ import annotations

import time

import torch

from remate_runtime.engine import Pager, StepPages
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


def _copied(pages: StepPages, trip: int, tensor: torch.Tensor) -> tuple[int, int]:
    """Return the ns to copy a tensor to the scratch file, and back."""
    began = time.perf_counter_ns()
    pages.out(trip, tensor)
    pages.wait(trip)
    left = time.perf_counter_ns()
    pages.back(trip)
    pages.wait(trip)
    return left - began, time.perf_counter_ns() - left
