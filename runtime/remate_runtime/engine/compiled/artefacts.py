"""Compiled functions by content. Equal segments share a function."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
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
from .times import KnownTimes, Run, compiled_run
from .workers import prepare
from .workspaces import Workspaces, made_up
from .wrapper import WrapperMemory, held, without_kernels

_log = logging.getLogger(__name__)
_RUNS = 4  # the first warms up
_CPU = torch.device("cpu")


class Function(NamedTuple):
    """A compiled segment. `about.output_types` has the actual memory layouts of its results. Equal functions have equal
    keys."""

    about: SegmentGraph
    key: str
    run: Compiled


class Artefacts:
    """The compiled functions of all forms of a step on a device, and the memory that they use.

    Attributes:
        device: The device.
        workspaces: Measured workspaces of operators.
        constants: Constants of the step.
    """

    def __init__(self, device: torch.device = _CPU, kernels: bool = True) -> None:
        """kernels: Whether the device runs kernels. False for a dry run: functions are Inductor's code around kernels,
        nothing is measured, and nothing stays on disk."""
        self.device, self._kernels = numbered(device), kernels
        self._known: dict[str, tuple[Compiled, tuple[TensorType, ...]] | str] = {}
        self._held: dict[tuple[str, Collection[int]], WrapperMemory] = {}
        self.workspaces, self.constants = Workspaces(self.device, kernels), Constants()
        self._times, self._disk = KnownTimes(self.device), Disk()
        self._has_warned = self._is_closed = False
        if self._disk.reason:
            self._warn()

    def prepare(self, graphs: Iterable[SegmentGraph]) -> None:
        """Compile unknown graphs in parallel, before `get` compiles them one by one."""
        # On a GPU Inductor itself compiles kernels in parallel, and each of our processes would create a context.
        if self.device.type != "cpu" or not self._kernels:
            return
        keys = {self._key(about): about for about in graphs}
        with suppress(OSError), self._disk.use():
            prepare([(key, about) for key, about in keys.items() if key not in self._known])

    def get(self, about: SegmentGraph, what: str) -> Function | str:
        """Return the function of a segment. If it does not compile, return the name of the operator that fails, "" if
        that is not known.

        Args:
            about: The segment's graph.
            what: Name of the segment in the log.
        """
        key = self._key(about)
        if key not in self._known:
            try:
                run = self._compiled(about, key, what)
                types = self.held(Function(about, key, run), frozenset(about.donated)).output_types
                _check(about, types)
                self._warm(Function(about, key, run))
                self._known[key] = run, types
            except Exception as error:  # Inductor may raise any error; the segment is interpreted instead
                blamed = error.operator if isinstance(error, DoesNotCompileError) else ""
                if not self._is_closed:
                    _log.warning("%s does not compile and is interpreted: %s", blamed or what, _reason(error))
                self._known[key] = blamed
        entry = self._known[key]
        return entry if isinstance(entry, str) else Function(about._replace(output_types=entry[1]), key, entry[0])

    def _compiled(self, about: SegmentGraph, key: str, what: str) -> Compiled:
        """Compile a graph, with a temporary cache folder if the configured one fails. Raises Inductor's last error."""
        if self._is_closed:
            raise DoesNotCompileError("nothing can be written")
        given = about.module, about.input_types, about.output_types, about.donated, about.free, self.device, key
        if not self._kernels:
            with self._disk.aside():
                return without_kernels(compiled(*given), self.device, checks=True)
        known = False
        try:
            with self._disk.use():
                known = has_been_compiled(key)
                return compiled(*given)
        except DoesNotCompileError:
            raise
        except Exception as error:  # a damaged file or a full disk may raise any error
            if self._disk.is_barred(error):
                self._warn()
            elif known or any(isinstance(cause, OSError | ImportError | EOFError) for cause in causes(error)):
                _log.warning("%s: Inductor's cache cannot be read (%s): it is compiled again", what, _reason(error))
            else:
                raise
        try:
            with self._disk.aside():
                return compiled(*given)
        except Exception as error:
            if self._disk.is_barred(error) and not self._is_closed:
                self._is_closed = True
                _log.warning(
                    "no temporary folder is writable either (%s): segments that are not compiled yet are interpreted",
                    _reason(error),
                )
            raise

    def _key(self, about: SegmentGraph) -> str:
        return hashlib.sha256(f"{about.key}\n{self.device}".encode()).hexdigest()

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s is not writable (%s): compiled code is kept for this process only",
                self._disk.path,
                self._disk.reason,
            )

    def _warm(self, function: Function) -> None:
        """Run a function once on a GPU. Its first run compares kernels, and needs memory for copies: here no activation
        is in memory yet."""
        if self.device.type == "cuda" and self._kernels:
            with suppress(torch.OutOfMemoryError):
                _taken(function, self.device)

    def prefers_interpreter(self, function: Function, interpretation: Callable[[], Run]) -> bool:
        """Return whether interpretation of a segment is faster than its function. The times are measured once.

        Args:
            function: The function.
            interpretation: Prepares a run of the segment by the interpreter.
        """
        # On a GPU the launches of a segment overlap with those of its neighbours, so its own time says little.
        if self.device.type != "cpu" or not self._kernels:
            return False
        with suppress(OSError), self._disk.use():
            run = compiled_run(function.run, function.about.input_types, self.device)
            times = self._times.of(function.key, run, interpretation)
            return times is not None and times.prefers_interpreter
        return False

    def held(self, function: Function, owned: frozenset[int]) -> WrapperMemory:
        """Return the memory of a function that owns the inputs with these indices."""
        at = function.key, owned
        if at not in self._held:
            about = function.about
            given = about.input_types, about.output_types, about.donated, owned
            self._held[at] = held(function.run, *given, self.workspaces.of, self.device)
        return self._held[at]


def ns_of(functions: Iterable[Function], device: torch.device) -> dict[str, int]:
    """Measure functions on artificial data. Runs alternate between functions, so that other load affects all alike.

    Args:
        functions: The functions.
        device: Their device.

    Returns:
        The shortest of a few runs in ns, by key.
    """
    each = {function.key: function for function in functions}
    runs = [{key: _taken(function, device) for key, function in each.items()} for _ in range(_RUNS)]
    return {key: min(run[key] for run in runs) for key in each}


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _taken(function: Function, device: torch.device) -> int:
    given = [made_up(empty(kind, device)) for kind in function.about.input_types]
    with torch.no_grad():
        return ns_taken(lambda: function.run(given), device)


def _check(about: SegmentGraph, types: Sequence[TensorType]) -> None:
    """Raise DoesNotCompileError if a result that is not free has a different memory layout than the file declares."""
    for at, (kind, declared) in enumerate(zip(types, about.output_types, strict=True)):
        if at not in about.free and kind != declared:
            raise DoesNotCompileError(f"a result is {kind}, the file declares {declared}")
