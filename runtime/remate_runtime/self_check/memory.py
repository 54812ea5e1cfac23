"""Estimates whether memory suffices for a step of the model itself, which needs what the schedule saves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

_RESERVE = 1.25  # factor on the predicted memory of a step
_CGROUP = Path("/sys/fs/cgroup")


def fits(wanted: int, budget: int, device: torch.device) -> bool:
    """Return whether a step that needs `wanted` bytes may run: within the schedule's budget, or in free memory.

    Free memory is read from the GPU, or from Linux and the process's control group. If neither reports it, the budget
    decides.
    """
    return wanted <= budget or wanted * _RESERVE <= available(device)


def available(device: torch.device) -> int:
    """Return the bytes that could be allocated on a device now; 0 if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return 0
    free = 0
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        ):
            with suppress(OSError, ValueError):  # no file, or its content is "max"
                most = int((_CGROUP / limit).read_text(encoding="ascii"))
                free = min(free, most - int((_CGROUP / used).read_text(encoding="ascii")))
    return max(0, free)
