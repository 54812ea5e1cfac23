"""How much memory is there for a step of the model itself, which takes what the schedule was made to save."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

_RESERVE = 1.25  # of what a step is predicted to take
_CGROUP = Path("/sys/fs/cgroup")


def fits(wanted: int, budget: int, device: torch.device) -> bool:
    """Whether a step that takes `wanted` bytes may run: within the budget of the schedule, or in memory that is free
    anyway.

    What is free is asked of the GPU, or of Linux and the process's control group; where nobody says, the budget
    decides.
    """
    return wanted <= budget or wanted * _RESERVE <= available(device)


def available(device: torch.device) -> int:
    """Bytes that could be allocated on a device now; 0 where that is not known."""
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
            with suppress(OSError, ValueError):  # there is none, or it is "max"
                most = int((_CGROUP / limit).read_text(encoding="ascii"))
                free = min(free, most - int((_CGROUP / used).read_text(encoding="ascii")))
    return max(0, free)
