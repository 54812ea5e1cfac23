"""Measures a module's steps, grouped by the sizes of its inputs."""

from __future__ import annotations

import threading
from statistics import median
from typing import Any

import msgspec
import torch

from ..step_measurement.step_meter import StepMeter

_TIMES = 50  # most times kept for each kind of step


class Beside(msgspec.Struct, frozen=True):
    """Measurements of an eager step and of a scheduled step at the same sizes.

    Peaks are in bytes, times in ns. A value is None if the script ended before its measurement.
    """

    eager_peak: int | None = None
    peak: int | None = None
    eager_time: int | None = None
    time: int | None = None


class _Taken:
    def __init__(self) -> None:
        self.peak: int | None = None
        self.times: list[int] = []

    @property
    def time(self) -> int | None:
        return round(median(self.times)) if self.times else None


class StepsTaken:
    """Measures steps. A step begins with a call of the module, and ends with the backward through it."""

    def __init__(self) -> None:
        self._meter: StepMeter | None = None
        self._thread = 0  # on which the meter began
        self._memory = self._over = self._scheduled = self._dropped = False
        self._on_cpu = True
        self._sizes: Any = ()
        self._taken: dict[tuple[bool, Any], _Taken] = {}

    @property
    def under_way(self) -> bool:
        return self._meter is not None

    @property
    def measures_memory(self) -> bool:
        return self._meter is not None and self._memory

    def begin(self, device: torch.device, memory: bool, gradients: int) -> None:
        """Begin a step.

        Args:
            device: The module's device.
            memory: Whether to measure the peak; on the CPU, instead of the time.
            gradients: Bytes of gradients that the module's parameters hold.
        """
        self._on_cpu = device.type == "cpu"
        self._meter, self._memory = StepMeter(device, memory, gradients), memory
        self._thread = threading.get_ident()
        self._over = self._dropped = False

    def at(self, sizes: object) -> None:
        """Set the input sizes of the current step."""
        self._sizes = sizes

    def drop(self) -> None:
        """Discard the current measurement, because its step is not comparable."""
        self._dropped = True
        self._over = self._meter is not None

    def end(self, scheduled: bool) -> None:
        """End the step; `settle` reads the measurement later.

        Args:
            scheduled: Whether a schedule ran the step.
        """
        if self._meter is not None and not self._over:
            self._meter.end()
            self._over, self._scheduled = True, scheduled

    def settle(self) -> None:
        """Read the measurement of a step that has ended. Must not be called within a backward."""
        if self._meter is None or not self._over:
            return
        if self._memory and self._thread != threading.get_ident():  # only its own thread can stop the profiler
            return
        peak, took = self._meter.stop()
        self._meter, self._over = None, False
        if self._dropped:
            return
        taken = self._taken.setdefault((self._scheduled, self._sizes), _Taken())
        if peak is not None:
            taken.peak = peak
        if took is not None and not self._scheduled:
            taken.times = [took]  # the first eager step loads kernels
        elif took is not None and len(taken.times) < _TIMES:
            taken.times.append(took)

    def close(self) -> None:
        """End the measurements. A step without a backward is discarded. torch crashes at the end of a process in which
        the profiler still runs."""
        if not self._over:
            self.drop()
        self.settle()

    def wants_memory(self, scheduled: bool) -> bool:
        """Return whether to measure the peak of the next step.

        The first eager step is measured, and the second scheduled one. On CUDA, where measuring takes no time, all
        eager ones: the last is most like the scheduled steps, which follow an optimizer's step.
        """
        kinds = [taken for (by, _), taken in self._taken.items() if by == scheduled]
        if not scheduled:
            if not self._on_cpu:
                return True
            return not any(taken.peak is not None for taken in kinds)
        return bool(kinds) and not any(taken.peak is not None for taken in kinds)

    def beside(self) -> Beside:
        """Return the measurements at the sizes with the most of them."""
        complete = [
            Beside(eager.peak, taken.peak, eager.time, taken.time)
            for (scheduled, sizes), taken in self._taken.items()
            if scheduled and (eager := self._taken.get((False, sizes))) is not None
        ]
        eager_only = [
            Beside(eager_peak=step.peak, eager_time=step.time) for (by, _), step in self._taken.items() if not by
        ]
        return max(
            [*complete, *eager_only, Beside()],
            key=lambda pair: sum(value is not None for value in msgspec.structs.astuple(pair)),
        )
