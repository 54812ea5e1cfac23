"""Allocations on a GPU during a run, from the statistics of torch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def peak_on_cuda(fn: Callable[[], Any], device: torch.device) -> int:
    """Run `fn` once and return the peak of bytes requested on `device`, above the level at its start.

    This resets the statistics of peaks. `torch.cuda.max_memory_allocated` also counts the rounding of blocks.
    """
    meter = CudaPeak(device)
    fn()
    return meter.peak()


class CudaPeak:
    """The peak of bytes requested on a device since creation, above the level at that time."""

    def __init__(self, device: torch.device) -> None:
        native = torch.cuda.get_allocator_backend() == "native"
        self._what = "requested_bytes" if native else "allocated_bytes"  # cudaMallocAsync does not count requests
        self._device = device
        torch.cuda.synchronize(device)
        self._start = self._now("current")
        torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return max(0, self._now("peak") - self._start)

    def _now(self, which: str) -> int:
        return torch.cuda.memory_stats(self._device).get(f"{self._what}.all.{which}", 0)
