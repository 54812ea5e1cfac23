"""How large a batch fits a device: plans of one step at many sizes, which is captured for all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import expand
from remate_runtime.format import Gradients, Model, Schedule, Settings, at_size, spelled

from ..capture.recorded import RecordedCall
from ..dims.open_sizes import OpenSizes
from ..dims.requested_sizes import Asking
from ..errors import DoesNotFitError, InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..profile.costing import MEASURED, costed
from ..profile.devices import Device
from ..schedule_tools.device_memory import OptimizerState, residents
from ..strategy import QUICK, Effort, Request, Solution, StepInstance, effort_named, policy, solve
from .options import PlanOptions
from .plan import Progress, plan_step, prepare
from .unsolved import without_recomputes
from .writing import schedule_of

_MOST = 1 << 14  # what is tried where nobody gave an end
_FINE = 64  # the largest size is found to about this part of it
_TRIES = 8  # sizes to step down to, where measured workspaces are larger than estimated ones
_FAKE_MODULE = {"cpu": "cpu", "cuda": "h200"}  # costs of the search, where those that count are measured


class Batch(msgspec.Struct, frozen=True):
    """Training at one size. left: bytes of the device that the step may use. baseline_peak, baseline_time: of the step
    without recomputations. peak, time: of the plan within what is left, that without recomputation where it fits; None
    where none was found. Bytes and nanoseconds."""

    size: int
    left: int
    baseline_peak: int
    baseline_time: int
    peak: int | None
    time: int | None
    recomputes: int

    @property
    def keeps_all(self) -> bool:
        return self.baseline_peak <= self.left

    @property
    def per_second(self) -> float:
        """Samples in a second, 0 where training does not fit."""
        return 0.0 if self.time is None else self.size / max(1, self.time) * 1e9


class DeviceLimits(msgspec.Struct, frozen=True):
    """memory, cuda_context, reserve: bytes. optimizer: whose state is held. gradients: what becomes of them when they
    are delivered."""

    memory: int
    optimizer: OptimizerState
    cuda_context: int | None
    gradients: Gradients = "retained"
    reserve: int = 0

    def held(self, model: Model) -> dict[str, int]:
        """Bytes that stay on the device while `model` trains, by what they are."""
        found = residents(model, self.optimizer, self.cuda_context, self.gradients, self.reserve)
        return {one.what: one.nbytes for one in found}

    def left(self, model: Model) -> int:
        """Bytes that a step of `model` may use, below 0 where it has no room at all."""
        return self.memory - sum(self.held(model).values())


class Search:
    """call: the example. asking: its sizes, of which the first is varied. settings: of plans, without a budget.
    options, gpu: as of `prepare`. Raises what `prepare` raises."""

    def __init__(
        self,
        call: RecordedCall,
        asking: Asking,
        device: DeviceLimits,
        cost: str,
        settings: Settings,
        options: PlanOptions,
        gpu: Device | None,
        progress: Progress,
    ) -> None:
        first = asking.sizes[0]
        self.dim, self._most = first.name, first.max or max(_MOST, first.planned)
        self._call, self._asking, self._device, self._cost = call, asking, device, cost
        self._settings, self._options, self._gpu, self._say = settings, options, gpu, progress
        step = self._prepared(self._upto(self._most), largest=False, cost=_fake_module(call, cost))
        self._parts = step.parts
        nothing = without_recomputes(step.captured.graph, step.parts)
        self._open = schedule_of(step, nothing, nothing.peak, _fake_module(call, cost), name="")
        self._graphs: dict[int, tuple[StepInstance, int]] = {}
        self._found: dict[int, Solution | None] = {}

    def planned(self, name: str, note: str) -> Schedule:
        """The schedule for all sizes up to the largest that fits, which it is planned at. Raises InfeasibleError."""
        most = self._largest(self._most)
        for _ in range(_TRIES):
            self._say(f"planning for up to {self.dim}={most}")
            step = self._prepared(self._upto(most), largest=True, cost=self._cost)
            settings = replace(self._settings, budget=str(self._at(most)[1]))
            try:
                return plan_step(step, settings, self._cost, name=name, note=note, progress=self._say)
            except InfeasibleError:
                if self._cost != MEASURED or most <= self._least:
                    raise
                most = self._largest(most - max(self._step, most // 32))
        raise self._refused(most)

    def ladder(self, most: int) -> list[int]:
        """Some sizes up to the largest: without recomputation down from the largest that needs none, and with them."""
        kept = self._last(self._least, most, self._keeps_all) or self._least
        wanted = {most, kept, self._least, *(kept + (most - kept) * k // 4 for k in (1, 2, 3))}
        size = kept
        while size > self._least and len(wanted) < 10:
            wanted.add(size)
            size //= 2
        return sorted({max(self._least, size // self._step * self._step) for size in wanted})

    def batch(self, size: int) -> Batch:
        """What a size takes, with its own costs: measured there, if costs are."""
        self._say(f"planning at {self.dim}={size}")
        instance, left = self._at(size)
        if self._cost == MEASURED:
            options = self._options
            again: dict[str, Any] = {"cached": options.cache, "again": options.measure_again, "progress": self._say}
            instance = StepInstance(costed(instance.graph, MEASURED, options.profile, **again), self._parts)
        found = self._solved(instance, left, effort_named(self._settings.effort))
        base = instance.baseline
        peak, time = (found.peak, found.time) if found else (None, None)
        return Batch(size, left, base.peak, base.time, peak, time, len(found.recomputes) if found else 0)

    @property
    def _least(self) -> int:
        return self._open.model.dims[self.dim].min

    @property
    def _step(self) -> int:
        return self._open.model.dims[self.dim].multiple

    def _upto(self, most: int) -> Asking:
        first, *others = self._asking.sizes
        return replace(self._asking, sizes=(replace(first, max=most), *others))

    def _prepared(self, asking: Asking, largest: bool, cost: str) -> Hierarchy:
        sizes = OpenSizes(asking, largest)
        options = self._options
        return prepare(self._call, cost=cost, options=options, open_sizes=sizes, gpu=self._gpu, progress=self._say)

    def _at(self, size: int) -> tuple[StepInstance, int]:
        """The step at a size, with costs of the search, and what the device leaves for it."""
        if size not in self._graphs:
            plain = at_size(self._open, self._sizes(size))
            graph = costed(expand(plain).graph, _fake_module(self._call, self._cost))
            self._graphs[size] = StepInstance(graph, self._parts), self._device.left(plain.model)
        return self._graphs[size]

    def _sizes(self, size: int) -> dict[str, int]:
        """The other sizes are as large as they can be."""
        return {name: dim.max for name, dim in self._open.model.dims.items()} | {self.dim: size}

    def _largest(self, below: int) -> int:
        """The largest size that fits, none above `below`. Raises InfeasibleError."""
        least = self._least
        kept = self._last(least, below, self._keeps_all)
        found = self._last(kept or least, below, lambda size: self._solution(size) is not None)
        if found is None:
            raise self._refused(least)
        return found

    def _refused(self, size: int) -> DoesNotFitError:
        sizes = self._sizes(size)
        held = self._device.held(at_size(self._open, sizes).model)
        return DoesNotFitError(self._device.memory, held, self._at(size)[0].floor, spelled(sizes))

    def _last(self, low: int, high: int, fits: Callable[[int], bool]) -> int | None:
        """The largest size from `low` to `high` that fits, but for a 64th, where all smaller ones do; None if `low`
        does not. What fits lies near the lower end more often than not, so there are longer and longer steps first."""
        unit = self._step
        if not fits(low):
            return None
        at, above = low // unit, high // unit + 1
        stride = max(1, at // 2)
        while at + stride < above and fits((at + stride) * unit):
            at, stride = at + stride, 2 * stride
        above = min(above, at + stride)
        while above - at > max(1, at // _FINE):
            middle = (at + above) // 2
            at, above = (middle, above) if fits(middle * unit) else (at, middle)
        return at * unit

    def _keeps_all(self, size: int) -> bool:
        instance, left = self._at(size)
        return instance.baseline.peak <= left

    def _solution(self, size: int) -> Solution | None:
        if size not in self._found:
            instance, left = self._at(size)
            self._say(f"is there a plan at {self.dim}={size}?")
            self._found[size] = self._solved(instance, left, QUICK)
        return self._found[size]

    def _solved(self, instance: StepInstance, left: int, effort: Effort) -> Solution | None:
        if left < instance.floor:
            return None
        requested = self._settings
        request = Request(left, requested.gap, effort)
        try:
            found = solve(instance, request, policy(requested.strategy), time_limit=requested.time_limit)
        except InfeasibleError:
            return None
        if found.stopped_by == "interrupted":  # a single answer of many is none
            raise KeyboardInterrupt
        return found


def _fake_module(call: RecordedCall, cost: str) -> str:
    """Costs that need no device."""
    device = next((p.device.type for p in call.model.parameters()), "cpu")
    return _FAKE_MODULE.get(device, "h200") if cost == MEASURED else cost
