"""What is allocated on a GPU while something runs, from the statistics of torch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def peak_on_cuda(fn: Callable[[], Any], device: torch.device) -> int:
    """Run `fn` once; the peak of bytes requested on `device` while it runs, above the level at its start. The statistics of peaks
    start anew. `torch.cuda.max_memory_allocated` is more by what blocks are rounded up."""
    native = torch.cuda.get_allocator_backend() == "native"
    what = "requested_bytes" if native else "allocated_bytes"  # cudaMallocAsync does not count what was requested
    torch.cuda.synchronize(device)
    start = torch.cuda.memory_stats(device).get(f"{what}.all.current", 0)
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.memory_stats(device).get(f"{what}.all.peak", 0) - start)
