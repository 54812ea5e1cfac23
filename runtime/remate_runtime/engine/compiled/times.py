"""Compares a compiled segment with its interpretation, so that the faster one runs.

Compilation fuses elementwise operations, but it also replaces kernels and memory layouts of PyTorch, and some segments
become slower. Each function is compared once, on artificial data, and the times are kept beside Inductor's cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from ...devices.device_time import ns_taken
from ...operator_calls.overloads import empty
from ...support.files import write_atomically
from .inductor import Compiled, file_beside
from .workspaces import made_up

_RUNS = 4  # after the first run of each
_CLEAR = 1.5  # a compiled run that is faster by this factor needs no further runs
_NOISE = 1.02  # interpretation must be faster by this factor

Run = Callable[[], Any]


class SegmentTimes(NamedTuple):
    """Times of a segment in ns."""

    compiled: int
    interpreted: int

    @property
    def prefers_interpreter(self) -> bool:
        """Whether interpretation is faster, beyond noise."""
        return self.compiled > _NOISE * self.interpreted


class KnownTimes:
    """The measured times of compiled functions, in memory and on disk."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[str, SegmentTimes | None] = {}

    def of(self, key: str, compiled: Callable[[], Run], interpreted: Callable[[], Run]) -> SegmentTimes | None:
        """Return the times of a function; None if it does not run on artificial data.

        Args:
            key: Key of the function.
            compiled: Prepares a run of the function.
            interpreted: Prepares a run of the same segment by the interpreter.
        """
        if key not in self._known:
            self._known[key] = self._read(key) or self._measured(key, compiled, interpreted)
        return self._known[key]

    def _read(self, key: str) -> SegmentTimes | None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            times = json.loads(file_beside(key, self._name).read_text("utf-8"))
            return SegmentTimes(int(times["compiled"]), int(times["interpreted"]))
        return None

    def _measured(self, key: str, compiled: Callable[[], Run], interpreted: Callable[[], Run]) -> SegmentTimes | None:
        try:
            with torch.no_grad():
                times = _compare(compiled, interpreted, self._device)
        except Exception:  # kernels may raise any error on artificial data
            return None
        with suppress(OSError):
            write_atomically(file_beside(key, self._name), json.dumps(times._asdict()).encode())
        return times

    @property
    def _name(self) -> str:
        return f"{torch.get_num_threads()}-threads.json"


def _compare(compiled: Callable[[], Run], interpreted: Callable[[], Run], device: torch.device) -> SegmentTimes:
    """Measure both in turn, so that other load affects both. Return the shortest runs."""
    times = [(ns_taken(compiled(), device), ns_taken(interpreted(), device))]  # the first runs include setup
    times.clear()
    while len(times) < _RUNS:
        times.append((ns_taken(compiled(), device), ns_taken(interpreted(), device)))
        if times[-1][0] * _CLEAR < times[-1][1]:
            break
    return SegmentTimes(*(min(column) for column in zip(*times, strict=True)))


def compiled_run(run: Compiled, input_types: Sequence[Any], device: torch.device) -> Callable[[], Run]:
    """Return a function that prepares a run of a compiled function. input_types: types of its inputs."""

    def prepared() -> Run:
        given = [made_up(empty(kind, device)) for kind in input_types]
        return lambda: run(given)

    return prepared
