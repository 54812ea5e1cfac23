"""The steps of a schedule by size. Each is prepared at its first use."""

from __future__ import annotations

import logging
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace
from torch import nn

from ..bind.distributed import DistributedBinding
from ..bind.outputs import Build, output_builder
from ..engine.compiled_step import Engine
from ..engine.steps import Steps
from ..format.expressions import spelled
from ..format.schedule import Schedule
from ..format.signature import output_leaves
from ..link.fitting import fitted_and_linked
from ..link.sizes import SizedLinks
from ..link.verifier import Verified, verify
from ..operator_calls.lines import CheckedStep
from ..operator_calls.live import operators
from ..support.gc_pause import gc_paused
from ..support.quantities import size
from ..torch_private.operators import OpOverload
from .identity import Identity
from .recorded_call import RecordedInputs

KEPT_BYTES = (
    1 << 30
)  # most host memory for programs of sizes; beyond it, the least recently called programs are dropped
_EVENT_BYTES = 1400  # host memory of one event of a program, as measured
MANY_SIZES = 64  # number of prepared sizes that leads to a warning

_log = logging.getLogger(__name__)


class StepAtSize(NamedTuple):
    """The step of a size.

    Attributes:
        schedule: The schedule at this size.
        call: The inputs that it accepts.
        steps: Its programs.
        build: Builds the model's return value from output leaves.
    """

    schedule: Schedule
    call: RecordedInputs
    steps: Steps
    build: Build


class _Checked(NamedTuple):
    """The schedule at a size after verification, and its operators."""

    schedule: Schedule
    verified: Verified
    live: dict[str, OpOverload]


class StepsAtSizes:
    """The steps of a schedule by size.

    Each size is linked separately, because live ranges, strides and in-place choices depend on sizes.
    """

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
        self._links = SizedLinks()
        self._identity: Identity | None = None
        self._operators: CheckedStep | None = None  # of the first size
        self._returned: tuple[Any, Build] | None = None  # the outputs of the last size, which most sizes share
        self._prepared, self._seconds = 0, 0.0  # number of sizes so far, and their total time
        self._warned = False  # whether a warning said that a peak is over the budget
        self.distributed: DistributedBinding | None = None  # set when the model is bound
        self._checked: dict[tuple[int, ...], _Checked] = {}  # verified sizes whose step has not been built yet
        self._kept: OrderedDict[tuple[int, ...], StepAtSize] = OrderedDict()

    def verify(self, dims: Mapping[str, int]) -> None:
        """Check the file at a size without the model; `at` continues from there.

        Raises:
            ScheduleError: The file has faults.
        """
        with gc_paused():
            self._checked[tuple(dims.values())] = self._verified(dims)

    def at(self, dims: Mapping[str, int]) -> StepAtSize:
        """Return the step at a size.

        Args:
            dims: The value of each named size, in the schedule's order.

        Raises:
            ScheduleError: The file has faults at this size.
        """
        key = tuple(dims.values())
        step = self._kept.get(key)
        if step is None:
            begun = time.perf_counter()
            with gc_paused():
                step = self._build(self._checked.pop(key, None) or self._verified(dims))
            self._kept[key] = step
            self._drop_oldest()
            self._seconds += time.perf_counter() - begun
            self._prepared += 1
            if self._prepared == MANY_SIZES:
                self._hint()
        self._kept.move_to_end(key)
        return step

    def _drop_oldest(self) -> None:
        held = sum(len(step.steps.linked.events) for step in self._kept.values()) * _EVENT_BYTES
        while held > KEPT_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            held -= len(oldest.steps.linked.events) * _EVENT_BYTES

    def _hint(self) -> None:
        warnings.warn(
            f"schedule {self._schedule.name!r} was prepared for {self._prepared} sizes, which took "
            f"{self._seconds:.1f} s\n  use fewer batch sizes: pad lengths to multiples of 64 when collating, and drop "
            "the last, smaller batch",
            UserWarning,
            stacklevel=4,
        )

    def _verified(self, dims: Mapping[str, int]) -> _Checked:
        (schedule, dropped, recomputes), linked = fitted_and_linked(self._schedule, dims, self._links)
        if dropped:
            reason = (
                f"{dropped} of {recomputes} recomputations are left out, "
                f"because the budget of {size(schedule.solve.budget)} does not need them"
            )
            _log.info("schedule %r at %s: %s", schedule.name, spelled(dims), reason)
        verified = verify(schedule, spelled(dims), self._warned, linked)
        self._warned |= verified.peak > verified.budget
        live = operators(verified.linked.graph, verified.where, self._namespaces, self._operators)
        if self._operators is None and self._schedule.model.dims and self._links.types:
            self._operators = CheckedStep.of(verified.linked.graph, verified.where, self._links.types, live)
        return _Checked(schedule, verified, live)

    def _build(self, checked: _Checked) -> StepAtSize:
        planned = checked.schedule.model
        if self._identity is None:
            self._identity = Identity(planned.inputs, self._model)
        call = RecordedInputs(planned.inputs, self._model, self._identity)
        # In the order in which `ScheduledForward` passes them.
        names = [*call.names, *planned.parameters, *planned.buffers, *planned.live]
        outputs = tuple(output_leaves(planned.outputs))
        verified = checked.verified
        if planned.ranks and self.distributed is not None:
            linked = replace(verified.linked, graph=self.distributed.resolved(verified.linked.graph))
            verified = replace(verified, linked=linked)
        events = verified.linked.events
        others = (step.steps for step in reversed(self._kept.values()) if step.steps.linked.events is events)
        before = next(others, None)
        steps = Steps(self._engine, verified, outputs, names, checked.live, self._ranges, before)
        if self._returned is None or self._returned[0] != planned.outputs:
            self._returned = planned.outputs, output_builder(planned.outputs, self._model)
        return StepAtSize(checked.schedule, call, steps, self._returned[1])
