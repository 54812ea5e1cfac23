"""Copies values of a step to a scratch file, and back.

A step with paged values has a file of its own from its forward to the end of its backward. The file has no name, so
that nothing remains of it if the process ends. Its space is reserved before anything runs, so that a full disk is
reported early. One thread copies out and one copies back, beside the operations. Storages are copied byte by byte.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_char
from typing import Any, NamedTuple

import torch

from ...devices.cpu_memory import note_resident
from ...errors import ExecutionError
from ..compiled_step import MeasuredLane
from .mapped import Fetch, check_parameter, drop, is_mapped, mapped
from .page_copies import Away, Moved, Place, copied_bytes, end_of, placed, span

_PAGE = 4096  # alignment of places in the file, in bytes
_NOTHING: Mapping[int, Any] = {}


class PagedParameters(NamedTuple):
    """The parameters of a step that pages some of them.

    Attributes:
        paged: Values of the paged parameters.
        away: Those that are not in memory when a step begins.
        names: Names of all parameters that the peak counts, by value.
    """

    paged: frozenset[int]
    away: frozenset[int]
    names: dict[int, str]


_NO_PARAMETERS = PagedParameters(frozenset(), frozenset(), {})


class Pager:
    """Creates the pages of each run of a step.

    Attributes:
        slot: Slot of the pages.
    """

    def __init__(
        self,
        sizes: Mapping[int, tuple[str, int]],
        slot: int,
        gradients: Mapping[int, str] | None = None,
        parameters: PagedParameters = _NO_PARAMETERS,
    ) -> None:
        """Reserve places in the file.

        Args:
            sizes: Name and bytes of each paged result of forward, by trip.
            slot: Slot of the pages.
            gradients: Names of the paged gradients, by trip.
            parameters: The paged parameters.
        """
        self.slot = slot
        self._places = placed(sizes, _PAGE)
        self._nbytes = end_of(self._places.values())
        self._gradients, self._parameters = gradients or {}, parameters
        self._threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._process = 0
        self._latest = Moved()

    def open(self, sources: Mapping[int, Any] = _NOTHING) -> StepPages:
        """Return the pages of a run that begins.

        Args:
            sources: The tensors of the call, by value.

        Raises:
            ExecutionError: The disk is full, or a parameter cannot be paged.
        """
        if self._threads is None or self._process != os.getpid():  # threads do not survive a fork
            self._threads = ThreadPoolExecutor(1, "remate-page-out"), ThreadPoolExecutor(1, "remate-page-back")
            self._process = os.getpid()
        parameters = {value: sources[value] for value in self._parameters.names}
        self._settle(parameters)
        file = _Scratch(self._nbytes) if self._places else None
        names, self._latest = self._parameters.names, Moved()
        return StepPages(file, self._places, self._gradients, parameters, names, self._latest, *self._threads)

    def paged(self) -> tuple[MeasuredLane, ...]:
        """Return what the latest run has moved."""
        return self._latest.lanes()

    def _settle(self, parameters: Mapping[int, torch.Tensor]) -> None:
        """Move paged parameters to files if they are not in files yet, and page out those that are away at the
        start."""
        about = self._parameters
        for value in about.paged:
            if not is_mapped(parameters[value]):
                _move_to_file(about.names[value], parameters[value])
        for value, tensor in parameters.items():
            note_resident(tensor, False)
            if value in about.away:
                drop(tensor)
            else:
                note_resident(tensor, True)


def _move_to_file(name: str, parameter: torch.Tensor) -> None:
    check_parameter(name, parameter)
    file, nbytes = _Scratch(parameter.nbytes), parameter.nbytes
    copy = _Copy(parameter, file, Place(name, 0, nbytes), nbytes, True)
    copy.run()
    copy.check()
    parameter.data = mapped(file.number, parameter)


class _Scratch:
    """An unnamed file of a given size. It is closed, and its space freed, with the last reference to it."""

    def __init__(self, nbytes: int) -> None:
        self.folder = tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(prefix="remate-", buffering=0)  # noqa: SIM115 (closed when it is collected)
            self.number = self._file.fileno()
            _reserve(self.number, max(1, nbytes))
        except OSError as error:
            raise ExecutionError(
                f"cannot create a scratch file of {nbytes:,} bytes for paged values in {self.folder}: {error.strerror}"
                "\n  free space there, or name a folder on a larger disk in TMPDIR before Python starts; nothing "
                "has run yet"
            ) from None


def _reserve(number: int, nbytes: int) -> None:
    """Reserve the space of a file, if the system supports it. Raises OSError if the disk is full."""
    try:
        os.posix_fallocate(number, 0, nbytes)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(number, nbytes)  # copies will report a full disk


class _Copy:
    """A copy between a tensor and the scratch file. It drops its reference to the tensor before it completes, so that
    the step frees the tensor, and no thread does so later."""

    def __init__(self, tensor: torch.Tensor, file: _Scratch, place: Place, nbytes: int, out: bool) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._file, self._place, self._nbytes, self.out = file, place, nbytes, out
        self.failed = ""

    def run(self) -> None:
        try:
            self._move()
        except OSError as error:
            self.failed = error.strerror or str(error)
        finally:
            self._tensor = None

    def _move(self) -> None:
        assert self._tensor is not None
        memory = memoryview((c_char * self._nbytes).from_address(self._tensor.data_ptr())).cast("B")
        done = 0
        while done < self._nbytes:
            rest, at = memory[done:], self._place.offset + done
            moved = os.pwrite(self._file.number, rest, at) if self.out else os.preadv(self._file.number, [rest], at)
            if not moved:
                raise OSError(0, "the file ends early")
            done += moved

    def check(self) -> None:
        """Raise ExecutionError if the copy failed."""
        if self.failed:
            direction = "to" if self.out else "from"
            raise ExecutionError(
                f"{self._place.value} cannot be paged {direction} the scratch file in {self._file.folder}: "
                f"{self.failed}"
                "\n  the step is given up; parameters, buffers and optimizer are as they were: clear the gradients "
                "and call it again"
            )


class StepPages:
    """The pages of one run of a step."""

    def __init__(
        self,
        file: _Scratch | None,
        places: Mapping[int, Place],
        gradients: Mapping[int, str],
        parameters: Mapping[int, torch.Tensor],
        names: Mapping[int, str],
        moved: Moved,
        out: ThreadPoolExecutor,
        back: ThreadPoolExecutor,
    ) -> None:
        """Prepare for a run. Places and names of gradients are by trip, parameters and their names by value."""
        self._file, self._places, self._threads = file, places, {True: out, False: back}
        self._gradients, self._parameters, self._names, self._moved = gradients, parameters, names, moved
        self._away: dict[int, Away] = {}
        self._handed: dict[int, torch.Tensor] = {}
        self._running: dict[int, tuple[Future[None], _Copy | Fetch]] = {}

    def fetch(self, trip: int, value: int) -> None:
        """Start to read a parameter back."""
        note_resident(self._parameters[value], True)
        fetch = Fetch(self._names[value], self._parameters[value])
        self._moved.add("back", self._parameters[value].nbytes, 1, 0)
        self._running[trip] = self._threads[False].submit(fetch.run), fetch

    def leave(self, value: int) -> None:
        """Page a parameter out."""
        drop(self._parameters[value])
        note_resident(self._parameters[value], False)

    def hand_over(self, trip: int, gradient: torch.Tensor) -> None:
        """Start to copy a gradient to a file of its own."""
        nbytes = span(gradient)
        file = _Scratch(nbytes)
        self._handed[trip] = mapped(file.number, gradient)
        self._start(trip, gradient, file, Place(self._gradients[trip], 0, nbytes), True)

    def handed(self, trip: int) -> torch.Tensor:
        """Wait for the copy, and return the gradient in its file. Raises ExecutionError if the copy failed."""
        self.wait(trip)
        return self._handed.pop(trip)

    def out(self, trip: int, tensor: torch.Tensor) -> None:
        """Start to copy a tensor to the file."""
        self._away[trip] = Away.of(tensor)
        assert self._file is not None
        self._start(trip, tensor, self._file, self._places[trip], True)

    def back(self, trip: int) -> torch.Tensor:
        """Start to copy from the file into a new tensor, and return it."""
        tensor = self._away.pop(trip).empty()
        assert self._file is not None
        self._start(trip, tensor, self._file, self._places[trip], False)
        return tensor

    def wait(self, trip: int) -> None:
        """Wait until the copy is complete. Raises ExecutionError if it failed."""
        future, copy = self._running.pop(trip)
        began = time.perf_counter_ns()
        future.result()
        out = isinstance(copy, _Copy) and copy.out
        self._moved.add("out" if out else "back", 0, 0, time.perf_counter_ns() - began)
        copy.check()

    def _start(self, trip: int, tensor: torch.Tensor, file: _Scratch, place: Place, out: bool) -> None:
        nbytes = copied_bytes(tensor, place)
        self._moved.add("out" if out else "back", nbytes, 1, 0)
        copy = _Copy(tensor, file, place, nbytes, out)
        self._running[trip] = self._threads[out].submit(copy.run), copy
