"""Measures peak and time of a step that begins in one place of a program and ends in another."""

from __future__ import annotations

import time

import torch

from remate_runtime.devices.cpu_memory import AllocationLog
from remate_runtime.devices.cuda_memory import CudaPeak
from remate_runtime.torch_private.execution import is_profiled


class StepMeter:
    """Measures from its creation until `end`.

    Args:
        memory: Measure the peak. On the CPU, time is not measured then, because the profiler takes time. Only one meter
            at a time may measure memory.
    """

    def __init__(self, device: torch.device, memory: bool, gradients: int = 0) -> None:
        """Begin.

        Args:
            device: The device of the step.
            memory: See the attribute.
            gradients: Bytes of gradients that are held at the start. The peak counts them, so that a step that finds
                gradients of an earlier one can be compared with a step that finds none.
        """
        self._gradients = gradients
        self._device, self._log, self._cuda = device, None, None
        self._peak: int | None = None
        if memory and device.type == "cuda":
            self._cuda = CudaPeak(device)
        elif memory and not is_profiled():
            self._log = AllocationLog()
            self._log.start()
        self._finish()
        self._began, self._took = time.perf_counter_ns(), 0

    def end(self) -> None:
        """End the measurement. Callable where `stop` is not: in a callback of autograd, which restores the
        profiler's state."""
        self._finish()
        self._took = time.perf_counter_ns() - self._began
        if self._cuda is not None:
            self._peak = self._cuda.peak()
        elif self._log is not None:
            self._log.mark()

    def stop(self) -> tuple[int | None, int | None]:
        """Return the peak in bytes, and nanoseconds; None for what was not measured. The peak is that above the level
        at the start, and the gradients that were held then."""
        if self._log is None:
            return None if self._peak is None else self._peak + self._gradients, self._took or None
        self._log.stop()
        return self._log.peak() + self._gradients, None

    def left_open(self) -> list[str]:
        """As `AllocationLog.left_open`, after `stop`."""
        return [] if self._log is None else self._log.left_open()

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
