"""Measures times on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def ns_taken(run: Callable[[], Any], device: torch.device, runs: int = 1) -> int:
    """Return the nanoseconds that `runs` runs take together; at least 1.

    On the CPU with one thread it is the CPU time of this thread, which other processes do not affect; with more threads
    the wall time. On CUDA it is the time between two events of the current stream.
    """
    return _on_cuda(run, device, runs) if device.type == "cuda" else _on_cpu(run, runs)


def _on_cpu(run: Callable[[], Any], runs: int) -> int:
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start = clock()
    for _ in range(runs):
        run()
    return max(1, clock() - start)


def _on_cuda(run: Callable[[], Any], device: torch.device, runs: int) -> int:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        start.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
    return max(1, round(start.elapsed_time(end) * 1e6))
