"""Compiled functions by content: equal segments share one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from ...devices.device_time import ns_taken
from ...format.tensor_type import TensorType
from ...operator_calls.constants import Constants
from ...operator_calls.overloads import empty
from .disk import Disk, causes
from .graphs import SegmentGraph
from .inductor import Compiled, DoesNotCompileError, compiled, has_been_compiled, numbered
from .workers import prepare
from .workspaces import Workspaces, made_up
from .wrapper import WrapperMemory, held

_log = logging.getLogger(__name__)
_RUNS = 4  # the first warms up
_CPU = torch.device("cpu")


class Function(NamedTuple):
    """A compiled segment, whose results lie as `about.gives` tells. key: equal for equal functions."""

    about: SegmentGraph
    key: str
    run: Compiled


class Artefacts:
    """What has been compiled for a step on a device, in all its forms, and what it holds. What does not compile is
    known by the operator that is to blame. constants: of the step."""

    def __init__(self, device: torch.device = _CPU) -> None:
        self.device = numbered(device)
        self._known: dict[str, tuple[Compiled, tuple[TensorType, ...]] | str] = {}
        self._held: dict[tuple[str, Collection[int]], WrapperMemory] = {}
        self.workspaces, self.constants = Workspaces(self.device), Constants()
        self._disk = Disk()
        self._told = self._is_closed = False
        if self._disk.reason:
            self._tell()

    def prepare(self, graphs: Iterable[SegmentGraph]) -> None:
        """Have what is not known compiled side by side, before `get` asks for one after the other."""
        # On a GPU Inductor itself compiles kernels side by side, and our processes would each have a context.
        if self.device.type != "cpu":
            return
        keys = {self._key(about): about for about in graphs}
        with suppress(OSError), self._disk.use():
            prepare([(key, about) for key, about in keys.items() if key not in self._known])

    def get(self, about: SegmentGraph, what: str) -> Function | str:
        """The function of a segment; or if there is none, the name of the operator that is to blame, "" where that is
        not known. what: names the segment in the log, which says why."""
        key = self._key(about)
        if key not in self._known:
            try:
                run = self._compiled(about, key, what)
                lie = self.held(Function(about, key, run), frozenset(about.donated)).gives
                _check(about, lie)
                self._warm(Function(about, key, run))
                self._known[key] = run, lie
            except Exception as error:  # Inductor raises whatever it meets; operator by operator the step is right
                blamed = error.operator if isinstance(error, DoesNotCompileError) else ""
                if not self._is_closed:
                    _log.warning("%s does not compile and is interpreted: %s", blamed or what, _reason(error))
                self._known[key] = blamed
        entry = self._known[key]
        return entry if isinstance(entry, str) else Function(about._replace(gives=entry[1]), key, entry[0])

    def _compiled(self, about: SegmentGraph, key: str, what: str) -> Compiled:
        """Raises what Inductor raises last, where it is not the disk's fault or no other folder can be written,
        either."""
        if self._is_closed:
            raise DoesNotCompileError("nothing can be written")
        given = about.module, about.takes, about.gives, about.donated, about.free, self.device, key
        known = False
        try:
            with self._disk.use():
                known = has_been_compiled(key)
                return compiled(*given)
        except DoesNotCompileError:
            raise
        except Exception as error:  # whatever reading a damaged file raises, or writing to a full disk
            if self._disk.is_barred(error):
                self._tell()
            elif known or any(isinstance(cause, OSError | ImportError | EOFError) for cause in causes(error)):
                _log.warning("%s: what is on disk cannot be read (%s): it is compiled again", what, _reason(error))
            else:
                raise
        try:
            with self._disk.aside():
                return compiled(*given)
        except Exception as error:
            if self._disk.is_barred(error) and not self._is_closed:
                self._is_closed = True
                _log.warning(
                    "a temporary folder cannot be written, either (%s): what has not been compiled is interpreted",
                    _reason(error),
                )
            raise

    def _key(self, about: SegmentGraph) -> str:
        return hashlib.sha256(f"{about.key}\n{self.device}".encode()).hexdigest()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "%s cannot be written (%s): what is compiled is kept for this process alone",
                self._disk.path,
                self._disk.reason,
            )

    def _warm(self, function: Function) -> None:
        """On a GPU the first run tries kernels against each other, and copies for that what they write over: here,
        where no activation is there yet."""
        if self.device.type == "cuda":
            with suppress(torch.OutOfMemoryError):
                _taken(function, self.device)

    def held(self, function: Function, owned: frozenset[int]) -> WrapperMemory:
        """What the function holds where it owns these inputs."""
        at = function.key, owned
        if at not in self._held:
            about = function.about
            given = about.takes, about.gives, about.donated, owned
            self._held[at] = held(function.run, *given, self.workspaces.of, self.device)
        return self._held[at]


def ns_of(functions: Iterable[Function], device: torch.device) -> dict[str, int]:
    """How long each takes on made-up data, by its key: the least of a few runs. They run in turn, so that what else the
    machine does meets them all."""
    each = {function.key: function for function in functions}
    runs = [{key: _taken(function, device) for key, function in each.items()} for _ in range(_RUNS)]
    return {key: min(run[key] for run in runs) for key in each}


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _taken(function: Function, device: torch.device) -> int:
    given = [made_up(empty(kind, device)) for kind in function.about.takes]
    with torch.no_grad():
        return ns_taken(lambda: function.run(given), device)


def _check(about: SegmentGraph, lie: Sequence[TensorType]) -> None:
    """Raise DoesNotCompileError for a result that has a different memory layout than the file declares, where that is
    seen elsewhere."""
    for at, (kind, declared) in enumerate(zip(lie, about.gives, strict=True)):
        if at not in about.free and kind != declared:
            raise DoesNotCompileError(f"a result is {kind}, the file declares {declared}")
