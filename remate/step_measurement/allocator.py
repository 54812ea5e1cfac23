"""The exact peak of allocated bytes, and fair comparisons of step times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import msgspec
import torch
from torch.autograd import profiler

from remate_runtime.devices.cpu_memory import Allocated, allocations_of, changes, peak_on_cpu
from remate_runtime.devices.cuda_memory import peak_on_cuda
from remate_runtime.torch_private.execution import record_cuda_allocations, recorded_cuda_allocations

Device = torch.device | str

_MARKS = {"start": "remate: step", "backward_start": "remate: forward has returned"}


def peak_bytes(fn: Callable[[], object], device: Device = "cpu") -> int:
    """Run `fn` once and return the peak of bytes allocated on `device`, above the level at its start.

    Bytes are as requested from the allocator: on CPU from the profiler's memory events, on CUDA from the allocator's
    statistics. `torch.cuda.max_memory_allocated` also counts the rounding of blocks to 512 bytes, and unsplit
    remainders of cached blocks of up to 1 MiB each, which depend on earlier runs. On CPU, freeing older memory does not
    reduce the peak, so set gradients to None beforehand. Warm up first if libraries keep workspaces. Not for use inside
    another profiler.
    """
    if torch.device(device).type == "cuda":
        return peak_on_cuda(fn, torch.device(device))
    return peak_on_cpu(fn)


class MemoryCurve(msgspec.Struct, frozen=True):
    """A curve of memory.

    Attributes:
        times: ns since the start.
        bytes: Bytes above the level at the start, from the corresponding time on.
        backward_start: ns since the start at which forward had returned.
    """

    backward_start: int
    times: tuple[int, ...]
    bytes: tuple[int, ...]


def memory_curve(step: Callable[[Callable[[], None]], object], device: Device = "cpu") -> MemoryCurve:
    """Run `step` once and record the allocator; the curve's peak is what `peak_bytes` would measure.

    On CUDA, this ends a running recording of allocation history. Recording slows the step down.

    Args:
        step: Receives a function to call between forward and backward.
        device: The device.
    """
    where = torch.device(device)
    marks: dict[str, int] = {}
    events = _history_cuda(step, where, marks) if where.type == "cuda" else _history_cpu(step, marks)
    start = marks["start"]
    times, levels, level = [0], [0], 0
    for time_ns, change in changes(event for event in events if event[0] >= start):
        level += change
        times.append(max(time_ns - start, times[-1]))
        levels.append(level)
    return MemoryCurve(max(0, marks.get("backward_start", start) - start), tuple(times), tuple(levels))


def _history_cpu(step: Callable[[Callable[[], None]], object], marks: dict[str, int]) -> list[Allocated]:
    def marked() -> None:
        with profiler.record_function(_MARKS["start"]):
            pass
        step(backward_start)

    def backward_start() -> None:
        with profiler.record_function(_MARKS["backward_start"]):
            pass

    names = {text: name for name, text in _MARKS.items()}
    return allocations_of(marked, lambda text, at: marks.setdefault(names[text], at) if text in names else None)


def _history_cuda(
    step: Callable[[Callable[[], None]], object], device: torch.device, marks: dict[str, int]
) -> list[Allocated]:
    def backward_start() -> None:
        marks["backward_start"] = time.time_ns()

    torch.cuda.synchronize(device)
    record_cuda_allocations(device, True)
    try:
        marks["start"] = time.time_ns() // 1000 * 1000
        step(backward_start)
        torch.cuda.synchronize(device)
        traced = recorded_cuda_allocations(device)  # read before the recording ends, which clears it
    finally:
        record_cuda_allocations(device, False)
    signs = {"alloc": 1, "free_completed": -1}
    events = [
        (event["time_us"] * 1000, event["addr"], signs[event["action"]] * event["size"])
        for event in traced
        if event["action"] in signs
    ]
    # The allocator's clock differs slightly from ours.
    marks["start"] = min([marks["start"], *(event[0] for event in events)])
    return events


class Times(msgspec.Struct, frozen=True):
    """Times of functions.

    Attributes:
        median: ns per call.
        ratio: Median over rounds of the ratio to the first function within a round.
        quartiles: Of those ratios.
        spread: Half the distance between them.
        rounds: ns of each call, in the order of rounds.
    """

    median: dict[str, int]
    ratio: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    rounds: dict[str, tuple[int, ...]]

    @property
    def spread(self) -> dict[str, float]:
        return {name: (high - low) / 2 for name, (low, high) in self.quartiles.items()}


def compare_times(
    fns: Mapping[str, Callable[[], object]],
    repeats: int = 10,
    device: Device = "cpu",
    clock: Callable[[], int] | None = None,
) -> Times:
    """Time the functions in rotation, so that other load affects all of them; the order reverses in every round.

    Each runs once to warm up. Ratios are taken within a round.

    Args:
        fns: Functions by name.
        repeats: Number of rounds.
        device: The device.
        clock: In ns. `time.process_time_ns` counts the CPU time of this process on all cores.
    """
    if not fns or repeats < 1:
        raise ValueError("compare_times needs at least one function and one repeat")
    names = list(fns)
    for name in names:
        timed(fns[name], device, clock)
    rounds: dict[str, list[int]] = {name: [] for name in names}
    for index in range(repeats):
        for name in names if index % 2 == 0 else reversed(names):
            rounds[name].append(timed(fns[name], device, clock))
    first = rounds[names[0]]
    ratios = {name: [a / b for a, b in zip(rounds[name], first, strict=True)] for name in names}
    return Times(
        {name: round(statistics.median(taken)) for name, taken in rounds.items()},
        {name: statistics.median(values) for name, values in ratios.items()},
        {name: _quartiles(values) for name, values in ratios.items()},
        {name: tuple(taken) for name, taken in rounds.items()},
    )


def timed(fn: Callable[[], object], device: Device = "cpu", clock: Callable[[], int] | None = None) -> int:
    """Return the nanoseconds of a call, with the device's work finished before and after.

    Args:
        fn: The function.
        device: The device.
        clock: `time.perf_counter_ns` if None.
    """
    clock = clock or time.perf_counter_ns
    _finish(device)
    start = clock()
    fn()
    _finish(device)
    return max(1, clock() - start)


def _finish(device: Device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
