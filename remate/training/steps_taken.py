"""Measures a module's steps, and compares eager ones with scheduled ones of the same kind."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from statistics import median
from typing import Any

import msgspec
import torch

from ..step_measurement.step_meter import StepMeter

_TIMES = 50  # most times kept for each kind of step
_TRIES = 6  # most scheduled steps with a peak, until one is of the kind of the measured eager step


class Beside(msgspec.Struct, frozen=True):
    """Measurements of an eager step and of a scheduled step of the same kind.

    Peaks are in bytes, times in ns. A value is None if the script ended before its measurement.

    Attributes:
        lasting: Bytes of gradients of the step before that lasted through forward of the scheduled step, and were freed
            before backward. They are part of its peak.
    """

    eager_peak: int | None = None
    peak: int | None = None
    eager_time: int | None = None
    time: int | None = None
    lasting: int = 0


class _Kind(msgspec.Struct, frozen=True):
    """What steps have in common that are compared.

    Attributes:
        accumulates: Whether parameters hold gradients when backward begins, to which it adds its own: the second
            backward of a GAN's discriminator, say.
        inputs: Shapes of the input tensors, and whether each requires a gradient.
        trained: Number of elements of the parameters that require a gradient.
    """

    accumulates: bool
    inputs: Any
    trained: int


class _Taken:
    """Measurements of the steps of one kind."""

    def __init__(self) -> None:
        self.peak: int | None = None
        self.lasting = 0
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
        self.accumulates = False  # of the current step
        self._found = 0  # bytes of gradients when the current step began
        self._inputs: Any = ()
        self._trained = 0
        self._eager: dict[_Kind, _Taken] = {}
        self._by_schedule: dict[_Kind, _Taken] = {}
        self._measured = 0  # scheduled steps with a peak

    @property
    def under_way(self) -> bool:
        return self._meter is not None

    @property
    def measures_memory(self) -> bool:
        return self._meter is not None and self._memory

    def begin(self, device: torch.device, memory: bool, gradients: int, trained: int) -> None:
        """Begin a step.

        Args:
            device: The module's device.
            memory: Whether to measure the peak; on the CPU, instead of the time.
            gradients: Bytes of gradients that the module's parameters hold.
            trained: Number of elements of the module's parameters that require a gradient.
        """
        self._trained = trained
        self._on_cpu, self.accumulates = device.type == "cpu", False
        self._meter, self._memory = StepMeter(device, memory, gradients), memory
        self._thread, self._found = threading.get_ident(), gradients
        self._over = self._dropped = False

    def of(self, inputs: object) -> None:
        """Set the inputs of the current step: shapes, and which require gradients."""
        self._inputs = inputs

    def drop(self) -> None:
        """Discard the current measurement, because its step is not comparable."""
        self._dropped = True
        self._over = self._meter is not None

    def drop_running(self) -> None:
        """Discard the current measurement unless its step has ended."""
        if not self._over:
            self.drop()

    def end(self, scheduled: bool) -> None:
        """End the step; `settle` reads the measurement later.

        Args:
            scheduled: Whether a schedule ran the step.
        """
        if self._meter is not None and not self._over:
            self._meter.end()
            self._over, self._scheduled = True, scheduled

    def settle(self) -> list[str]:
        """Read the measurement of a step that has ended. Must not be called within a backward.

        Returns:
            The ranges that go on, as `AllocationLog.left_open`.
        """
        if self._meter is None or not self._over:
            return []
        if self._memory and self._thread != threading.get_ident():  # only its own thread can stop the profiler
            return []
        peak, took = self._meter.stop()
        still_open = self._meter.left_open()
        self._meter, self._over = None, False
        if not self._dropped:
            self._keep(peak, took)
        return still_open

    def _keep(self, peak: int | None, took: int | None) -> None:
        self._measured += self._scheduled and peak is not None
        kinds = self._by_schedule if self._scheduled else self._eager
        taken = kinds.setdefault(_Kind(self.accumulates, self._inputs, self._trained), _Taken())
        if peak is not None:
            taken.peak, taken.lasting = peak, 0 if self.accumulates else self._found
        if took is not None and not self._scheduled:
            taken.times = [took]  # the first eager step loads kernels
        elif took is not None and len(taken.times) < _TIMES:
            taken.times.append(took)

    def close(self) -> list[str]:
        """End the measurements. A step without a backward is discarded. torch crashes at the end of a process in which
        the profiler still runs. Returns what `settle` does."""
        if not self._over:
            self.drop()
        return self.settle()

    def wants_memory(self, scheduled: bool) -> bool:
        """Return whether to measure the peak of the next step.

        The first eager step is measured. On CUDA, where measuring takes no time, all eager ones are: the last is most
        like the scheduled steps, which follow an optimizer's step. Scheduled ones are measured from the second on,
        until one is of the kind of a measured eager step.

        Args:
            scheduled: Whether a schedule may run the step.
        """
        measured = [kind for kind, taken in self._eager.items() if taken.peak is not None]
        if not scheduled:
            return not self._on_cpu or not measured
        if any(kind in self._by_schedule and self._by_schedule[kind].peak is not None for kind in measured):
            return False
        return bool(self._by_schedule) and self._measured < (_TRIES if measured else 1)

    def beside(self) -> Beside:
        """Return the measurements of the kind with the most of them.

        If no eager and scheduled steps are of one kind, it does not count whether they accumulate gradients.
        """
        exact = _pairs(self._eager, self._by_schedule)
        pairs = exact or _pairs(_ignoring_accumulation(self._eager), _ignoring_accumulation(self._by_schedule))
        pairs += [Beside(peak=step.peak, time=step.time, lasting=step.lasting) for step in self._by_schedule.values()]
        pairs += [Beside(eager_peak=step.peak, eager_time=step.time) for step in self._eager.values()]
        return max([*pairs, Beside()], key=_completeness)


def _completeness(pair: Beside) -> tuple[bool, int]:
    """Two peaks to compare come before everything else."""
    both = pair.eager_peak is not None and pair.peak is not None
    return both, sum(value is not None for value in (pair.eager_peak, pair.peak, pair.eager_time, pair.time))


def _pairs(eager: Mapping[Any, _Taken], scheduled: Mapping[Any, _Taken]) -> list[Beside]:
    return [
        Beside(eager[kind].peak, taken.peak, eager[kind].time, taken.time, taken.lasting)
        for kind, taken in scheduled.items()
        if kind in eager
    ]


def _ignoring_accumulation(kinds: Mapping[_Kind, _Taken]) -> dict[Any, _Taken]:
    """Return the measurements by what else steps have in common."""
    return {(kind.inputs, kind.trained): taken for kind, taken in kinds.items()}
