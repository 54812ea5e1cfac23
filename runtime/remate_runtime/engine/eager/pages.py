"""Values of a step that leave the device for a scratch file and come back.

A step of which values are paged has a file of its own, from its forward to the end of its backward: without a name, so
that nothing is left of it whatever happens to the process, and with all of its space taken before anything runs, so
that a full disk is noticed there. One thread copies out and one copies back, beside the operations; what is copied is
the storage as it lies in memory.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_char
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from ...errors import EngineError, ExecutionError
from ...link.events import Linked, PageBack, PageGone, PageOut, PageReady, Paging
from ..compiled_step import LinkedStep
from .placed import Slots

_PAGE = 4096  # bytes that places in the file are multiples of
_KEEP = "\n  delete the page statements (`remate edit S.json --keep ID`), or plan without them"


def check_pages(step: LinkedStep, device: torch.device) -> None:
    """Raise EngineError where the values of a step cannot be paged, with the reason."""
    memories = {event.to for event in step.linked.events if isinstance(event, PageOut)}
    if not memories:
        return
    if "host" in memories and device.type == "cpu":
        reason = (
            "values are paged to 'host', and on a CPU that is the memory that they are in\n"
            '  page them to "disk", or delete the page statements'
        )
    elif device.type not in ("cpu", "meta"):
        reason = f"values are paged, which this version does on the CPU only, and the model is on {device.type}{_KEEP}"
    elif step.sharded is not None:
        reason = (
            f"values are paged, and fully_shard has sharded parts of the model, which does not go together yet{_KEEP}"
        )
    elif not hasattr(os, "pwrite"):
        reason = f"values are paged to a scratch file, which needs a POSIX system{_KEEP}"
    else:
        return
    raise EngineError(reason)


class _Place(NamedTuple):
    """Of a trip: its value, bytes from the beginning of the file, bytes that it may take."""

    value: str
    offset: int
    nbytes: int


class Pager:
    """Makes the pages of each step of one kind. slot: where the list of slots has them."""

    def __init__(self, sizes: Sequence[tuple[str, int]], slot: int) -> None:
        """sizes: name and bytes of what each trip takes."""
        self.slot = slot
        rounded = [-(-nbytes // _PAGE) * _PAGE for _, nbytes in sizes]
        offsets = accumulate(rounded, initial=0)
        self._places = [_Place(name, at, size) for (name, _), at, size in zip(sizes, offsets, rounded, strict=False)]
        self._threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._process = 0

    def open(self) -> StepPages:
        """The pages of a step that begins. Raises ExecutionError if there is no room for them."""
        if self._threads is None or self._process != os.getpid():  # threads do not survive a fork
            self._threads = ThreadPoolExecutor(1, "remate-page-out"), ThreadPoolExecutor(1, "remate-page-back")
            self._process = os.getpid()
        last = self._places[-1]
        return StepPages(_Scratch(last.offset + last.nbytes), self._places, *self._threads)


def pager_of(linked: Linked, slot: int) -> Pager:
    """That of a step."""
    graph, outs = linked.graph, {event.trip: event.value for event in linked.events if isinstance(event, PageOut)}
    return Pager([(graph.values[outs[trip]].name, graph.nbytes(outs[trip])) for trip in range(len(outs))], slot)


class _Scratch:
    """An unnamed file of so many bytes. It is closed, and its space free, when nobody refers to it any more."""

    def __init__(self, nbytes: int) -> None:
        self.folder = tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(prefix="remate-", buffering=0)  # noqa: SIM115 (closed when it is collected)
            self.number = self._file.fileno()
            _reserve(self.number, max(1, nbytes))
        except OSError as error:
            raise ExecutionError(
                f"a scratch file of {nbytes:,} bytes for paged values cannot be made in {self.folder}: {error.strerror}"
                "\n  free space there, or name a folder on a larger disk in TMPDIR before Python starts; nothing "
                "has run yet"
            ) from None


def _reserve(number: int, nbytes: int) -> None:
    """Take the space of a file, where the system can. Raises OSError if there is not so much."""
    try:
        os.posix_fallocate(number, 0, nbytes)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(number, nbytes)  # a full disk is noticed by the copies then


class _Copy:
    """A copy between a tensor and the scratch file. It lets go of the tensor before it is over: whoever waits for it
    frees the tensor, and no thread does so later."""

    def __init__(self, tensor: torch.Tensor, file: _Scratch, place: _Place, nbytes: int, out: bool) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._file, self._place, self._nbytes, self._out = file, place, nbytes, out
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
            moved = os.pwrite(self._file.number, rest, at) if self._out else os.preadv(self._file.number, [rest], at)
            if not moved:
                raise OSError(0, "the file ends early")
            done += moved

    def check(self) -> None:
        """Raise ExecutionError if it failed."""
        if self.failed:
            direction = "to" if self._out else "from"
            raise ExecutionError(
                f"{self._place.value} cannot be paged {direction} the scratch file in {self._file.folder}: "
                f"{self.failed}"
                "\n  the step is given up; parameters, buffers and optimizer are as they were: clear the gradients "
                "and call it again"
            )


class _Away(NamedTuple):
    """How a tensor lies that has left."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class StepPages:
    """What one step pages, trip by trip."""

    def __init__(
        self, file: _Scratch, places: Sequence[_Place], out: ThreadPoolExecutor, back: ThreadPoolExecutor
    ) -> None:
        self._file, self._places, self._threads = file, places, {True: out, False: back}
        self._away: dict[int, _Away] = {}
        self._running: dict[int, tuple[Future[None], _Copy]] = {}

    def out(self, trip: int, tensor: torch.Tensor) -> None:
        """Begin to copy a tensor to the file."""
        self._away[trip] = _Away(tensor.size(), tensor.stride(), tensor.dtype, tensor.device)
        self._start(trip, tensor, True)

    def back(self, trip: int) -> torch.Tensor:
        """A new tensor, into which the copy begins."""
        away = self._away.pop(trip)
        tensor = torch.empty_strided(away.size, away.stride, dtype=away.dtype, device=away.device)
        self._start(trip, tensor, False)
        return tensor

    def wait(self, trip: int) -> None:
        """Wait until the copy is over. Raises ExecutionError if it failed."""
        future, copy = self._running.pop(trip)
        future.result()
        copy.check()

    def _start(self, trip: int, tensor: torch.Tensor, out: bool) -> None:
        place = self._places[trip]
        nbytes = _span(tensor)
        beyond = tensor.storage_offset() * tensor.element_size() + nbytes > tensor.untyped_storage().nbytes()
        if nbytes > place.nbytes or beyond or tensor.is_conj() or tensor.is_neg():
            raise ExecutionError(
                f"{place.value} does not lie in memory as the file declares it, and cannot be paged"
                "\n  plan again with the installed versions of torch and remate, on the device that trains"
            )
        copy = _Copy(tensor, self._file, place, nbytes, out)
        self._running[trip] = self._threads[out].submit(copy.run), copy


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to the last one."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def moving(event: Paging, pages: int) -> Any:
    """What an event does to the slots. pages: the slot of the step's pages."""
    trip, value = event.trip, event.value

    def out(slots: Slots) -> None:
        slots[pages].out(trip, slots[value])

    def back(slots: Slots) -> None:
        slots[value] = slots[pages].back(trip)

    def wait(slots: Slots) -> None:
        slots[pages].wait(trip)

    return {PageOut: out, PageGone: wait, PageBack: back, PageReady: wait}[type(event)]
