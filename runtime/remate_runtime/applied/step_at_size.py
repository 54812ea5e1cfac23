"""The step of one size, made ready for the devices that it is called on; and those of several sizes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn
from torch._ops import OpOverload

from ..bind.outputs import Build, output_builder
from ..engine.compiled_step import Engine
from ..engine.steps import Steps
from ..format.expressions import spelled
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..link.fitting import fitted
from ..link.verifier import Verified, verify
from ..operator_calls.live import operators
from ..support.gc_pause import gc_paused
from ..support.quantities import size
from .recorded_call import RecordedInputs

SIZES = 32  # whose programs are kept; of those that were called, the one that was not for the longest time goes

_log = logging.getLogger(__name__)


class StepAtSize(NamedTuple):
    """call: what it takes. steps: its programs. build: from output leaves to what the model returns."""

    schedule: Schedule
    call: RecordedInputs
    steps: Steps
    build: Build


class _Sound(NamedTuple):
    """The schedule at a size, without faults, and its operators."""

    schedule: Schedule
    verified: Verified
    live: dict[str, OpOverload]


class StepsAtSizes:
    """The steps of a schedule by size. Each is linked for itself: lives, strides and in-place choices follow from its
    sizes."""

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule,
        engine: Engine,
        namespaces: tuple[str, ...],
        ranges: str | None,
    ) -> None:
        self._model, self._schedule, self._engine, self._namespaces = model, schedule, engine, namespaces
        self._ranges = ranges
        self._warned = False  # that the peak at some size is over the budget
        self._sound: dict[tuple[int, ...], _Sound] = {}  # verified, and not made yet
        self._kept: OrderedDict[tuple[int, ...], StepAtSize] = OrderedDict()

    def verify(self, dims: Mapping[str, int]) -> None:
        """Look for faults of the file at a size, without the model; `at` goes on from there. Raises ScheduleError."""
        with gc_paused():
            self._sound[tuple(dims.values())] = self._verified(dims)

    def at(self, dims: Mapping[str, int]) -> StepAtSize:
        """The step at a size: a number for each that the schedule names, in its order. Raises ScheduleError."""
        key = tuple(dims.values())
        found = self._kept.get(key)
        if found is None:
            with gc_paused():
                found = self._made(self._sound.pop(key, None) or self._verified(dims))
            self._kept[key] = found
            while len(self._kept) > SIZES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _verified(self, dims: Mapping[str, int]) -> _Sound:
        schedule, dropped, recomputes = fitted(self._schedule, dims)
        if dropped:
            told = (
                f"{dropped} of its {recomputes} recomputations are left out, "
                f"which the budget of {size(schedule.solve.budget)} does not call for"
            )
            _log.info("schedule %r at %s: %s", schedule.name, spelled(dims), told)
        verified = verify(schedule, spelled(dims), self._warned)
        self._warned |= verified.peak > verified.budget
        return _Sound(schedule, verified, operators(verified.linked.graph, verified.where, self._namespaces))

    def _made(self, sound: _Sound) -> StepAtSize:
        planned = sound.schedule.model
        call = RecordedInputs(planned.inputs, self._model)
        # In the order in which `ScheduledForward` gives them.
        names = [*call.names, *planned.parameters, *planned.buffers, *planned.live]
        outputs = tuple(output_leaves(planned.outputs))
        steps = Steps(self._engine, sound.verified, outputs, names, sound.live, self._ranges)
        return StepAtSize(sound.schedule, call, steps, output_builder(planned.outputs, self._model))
