"""The step of one size, made ready for the devices that it is called on; and those of several sizes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from ..bind.outputs import Build, output_builder
from ..engine.compiled_step import Engine
from ..engine.steps import Steps
from ..format.expressions import spelled
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..gc_pause import gc_paused
from ..kernels.live import operators
from ..link.fitting import fitted
from ..link.verifier import verify
from ..quantities import size
from .recorded_call import RecordedCall

SIZES = 32  # whose programs are kept; of those that were called, the one that was not for the longest time goes

_log = logging.getLogger(__name__)


class StepAtSize(NamedTuple):
    """call: what it takes. steps: its programs. build: from output leaves to what the model returns."""

    schedule: Schedule
    call: RecordedCall
    steps: Steps
    build: Build


class StepsAtSizes:
    """The steps of a schedule by size. Each is linked for itself: lives, strides and in-place choices follow from its sizes.

    parameters: names of the model's parameters and buffers, in the order in which calls give them.
    """

    def __init__(
        self, model: nn.Module, schedule: Schedule, engine: Engine, namespaces: tuple[str, ...], parameters: list[str]
    ) -> None:
        self._model, self._schedule, self._engine = model, schedule, engine
        self._namespaces, self._parameters = namespaces, parameters
        self._kept: OrderedDict[tuple[int, ...], StepAtSize] = OrderedDict()

    def at(self, dims: Mapping[str, int]) -> StepAtSize:
        """The step at a size: a number for each that the schedule names, in its order. Raises ScheduleError."""
        key = tuple(dims.values())
        found = self._kept.get(key)
        if found is None:
            with gc_paused():
                found = self._made(dims)
            self._kept[key] = found
            while len(self._kept) > SIZES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _made(self, dims: Mapping[str, int]) -> StepAtSize:
        schedule, dropped = fitted(self._schedule, dims)
        if dropped:
            within = f"keep-all is within the budget of {size(schedule.solve.budget)}"
            _log.info(
                "schedule %r at %s: %s, its %d reruns are left out", schedule.name, spelled(dims), within, dropped
            )
        verified = verify(schedule, spelled(dims))
        live = operators(verified.linked.graph, verified.where, self._namespaces)
        call = RecordedCall(schedule.model.inputs, self._model)
        names = [*call.names, *self._parameters]
        steps = Steps(self._engine, verified, tuple(output_leaves(schedule.model.outputs)), names, live)
        return StepAtSize(schedule, call, steps, output_builder(schedule.model.outputs, self._model))
