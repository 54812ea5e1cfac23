"""Compiled functions by content: equal segments share one."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from ...format.tensor_type import TensorType
from ...kernels.constants import Constants
from ...kernels.overloads import empty
from .disk import Disk, causes
from .graphs import SegmentGraph
from .inductor import Compiled, DoesNotCompileError, Held, compiled, has_been_compiled, held
from .workers import prepare
from .workspaces import Workspaces, made_up

_log = logging.getLogger(__name__)
_RUNS = 4  # the first warms up


class Function(NamedTuple):
    """A compiled segment, whose results lie as `about.gives` tells. key: equal for equal functions."""

    about: SegmentGraph
    key: str
    run: Compiled


class Artefacts:
    """What has been compiled for a step, in all its forms, and what it holds. What does not compile is known by the operator that
    is to blame. constants: of the step."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Compiled, tuple[TensorType, ...]] | str] = {}
        self._held: dict[tuple[str, Collection[int]], Held] = {}
        self._workspaces, self.constants = Workspaces(), Constants()
        self._ns: dict[str, int] = {}
        self._disk = Disk()
        self._told = self._is_closed = False
        if self._disk.reason:
            self._tell()

    def prepare(self, graphs: Iterable[SegmentGraph]) -> None:
        """Have what is not known compiled side by side, before `get` asks for one after the other."""
        keys = {_key(about): about for about in graphs}
        with suppress(OSError), self._disk.use():
            prepare([(key, about) for key, about in keys.items() if key not in self._known])

    def get(self, about: SegmentGraph, what: str) -> Function | str:
        """The function of a segment; or if there is none, the name of the operator that is to blame, "" where that is not known.
        what: names the segment in the log, which says why."""
        key = _key(about)
        if key not in self._known:
            try:
                run = self._compiled(about, key, what)
                lie = self.held(Function(about, key, run), frozenset(about.donated)).gives
                _check(about, lie)
                self._known[key] = run, lie
            except Exception as error:  # Inductor raises whatever it meets; operator by operator the step is right
                blamed = error.operator if isinstance(error, DoesNotCompileError) else ""
                if not self._is_closed:
                    _log.warning("%s does not compile and is interpreted: %s", blamed or what, _reason(error))
                self._known[key] = blamed
        made = self._known[key]
        return made if isinstance(made, str) else Function(about._replace(gives=made[1]), key, made[0])

    def _compiled(self, about: SegmentGraph, key: str, what: str) -> Compiled:
        """Raises what Inductor raises last, where it is not the disk's fault or no other folder can be written, either."""
        if self._is_closed:
            raise DoesNotCompileError("nothing can be written")
        given = about.module, about.takes, about.gives, about.donated, about.free, key
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
            elif known or any(isinstance(one, OSError | ImportError | EOFError) for one in causes(error)):
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

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "%s cannot be written (%s): what is compiled is kept for this process alone",
                self._disk.path,
                self._disk.reason,
            )

    def held(self, function: Function, owned: frozenset[int]) -> Held:
        """What the function holds where it owns these inputs."""
        at = function.key, owned
        if at not in self._held:
            about = function.about
            self._held[at] = held(function.run, about.takes, about.gives, about.donated, owned, self._workspaces.of)
        return self._held[at]

    def ns(self, function: Function) -> int:
        """How long the function takes on made-up data: the least of a few runs."""
        if function.key not in self._ns:
            self._ns[function.key] = min(_taken(function) for _ in range(_RUNS))
        return self._ns[function.key]


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _taken(function: Function) -> int:
    given = [made_up(empty(kind, torch.device("cpu"))) for kind in function.about.takes]
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns  # as operations are measured
    with torch.no_grad():
        start = clock()
        function.run(given)
        return clock() - start


def _key(about: SegmentGraph) -> str:
    return hashlib.sha256(about.key.encode()).hexdigest()


def _check(about: SegmentGraph, lie: Sequence[TensorType]) -> None:
    """Raise DoesNotCompileError for a result that lies otherwise than the file declares, where that is seen elsewhere."""
    for at, (kind, declared) in enumerate(zip(lie, about.gives, strict=True)):
        if at not in about.free and kind != declared:
            raise DoesNotCompileError(f"a result is {kind}, the file declares {declared}")
