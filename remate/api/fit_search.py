"""Finds the largest batch that fits a device. The step is captured once for all sizes.

A plan is a list of recomputations of one step, so a plan for one size is also a plan for every other size. Each solve
adds its plans to those that are tried first at the next size. Most sizes then need a simulation and no solve.

Where splits are permitted, steps with a few numbers of tiles are searched as well. A size fits if it fits in one of
these forms.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.flat_step import FlatRecompute, expand
from remate_runtime.format import SPLIT_FEATURE, Gradients, Model, Schedule, Settings, at_size, largest_sizes, spelled

from ..capture.recorded import RecordedCall
from ..dims.open_sizes import OpenSizes
from ..dims.requested_sizes import Asking
from ..errors import DoesNotFitError, InfeasibleError
from ..partition.hierarchy import Hierarchy
from ..profile.costing import MEASURED, costed
from ..profile.devices import Device, is_estimated
from ..schedule_tools.device_memory import OptimizerState, residents
from ..splits.enough_rows import with_enough_rows
from ..splits.tiled_step import TiledStep
from ..strategy import (
    QUICK,
    Candidate,
    CandidatePool,
    Request,
    Solution,
    StepInstance,
    effort_named,
    policy,
    solve,
)
from .options import PlanOptions
from .plan import Progress, prepare
from .splitting import few_splits, plan_split
from .unsolved import without_recomputes
from .writing import schedule_of

_MOST = 1 << 14  # largest size to try if the range has no end
_FINE = 64  # the largest size is found to this part of it
_TRIES = 8  # sizes to step down to if measured workspaces are larger than estimated ones
_NEAR = 0.95  # share of the smallest known peak: if less memory than that is left, a size is not solved
_ESTIMATES = {"cpu": "cpu", "cuda": "h200"}  # costs of the search if costs are measured


class Batch(msgspec.Struct, frozen=True):
    """Training at one size, in bytes and nanoseconds.

    Attributes:
        size: The size.
        left: Memory that the device leaves for the step.
        baseline_peak: Peak without recomputation.
        baseline_time: Time without recomputation.
        peak: Peak of the plan; None if no plan fits.
        time: Time of the plan; None if no plan fits.
        recomputes: Number of recomputations of the plan.
    """

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
        """Samples per second; 0 if training does not fit."""
        return 0.0 if self.time is None else self.size / max(1, self.time) * 1e9


class DeviceLimits(msgspec.Struct, frozen=True):
    """Memory of a device, and what it holds besides the step.

    Attributes:
        memory: All memory, in bytes.
        optimizer: The optimizer, whose state is on the device.
        cuda_context: Size of the CUDA context in bytes; None for an estimate.
        gradients: Use of delivered gradients.
        reserve: Bytes to keep free.
    """

    memory: int
    optimizer: OptimizerState
    cuda_context: int | None
    gradients: Gradients = "retained"
    reserve: int = 0

    def held(self, model: Model) -> dict[str, int]:
        """Bytes that the device holds during training besides the step, by kind."""
        items = residents(model, self.optimizer, self.cuda_context, self.gradients, self.reserve)
        return {item.what: item.nbytes for item in items}

    def left(self, model: Model) -> int:
        """Bytes that the device leaves for the step; negative if it is full."""
        return self.memory - sum(self.held(model).values())


class Search:
    """The search for the largest size.

    Args:
        call: The example call.
        asking: Its sizes. The first one varies.
        device: The device.
        cost: The cost model.
        settings: Settings of plans, without a budget. Their time limit is that of the whole search.
        options: As for `prepare`.
        gpu: As for `prepare`.
        progress: Function that gets lines of progress.

    Attributes:
        dim: Name of the size that varies.
        ended: Whether Ctrl-C or the time limit ended the search; it uses the largest size known then.
    """

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
        self.ended, self._captures = False, dict[tuple[int, ...], Any]()
        limit = settings.time_limit
        self._end = float("inf") if limit is None else time.monotonic() + limit
        self._half = float("inf") if limit is None else time.monotonic() + limit / 2  # the rest is for the schedule
        step = self._prepared(self._upto(self._most), largest=False, cost=_estimates(call, cost))
        self._parts = step.parts
        bare = without_recomputes(step.captured.graph, step.parts)
        self._open = schedule_of(step, bare, bare.peak, _estimates(call, cost), name="")
        self._most = min(self._most, self._open.model.dims[self.dim].max)  # the step may change before
        self._steps: dict[int, tuple[StepInstance, int]] = {}
        self._plans: dict[tuple[FlatRecompute, ...], tuple[str, str]] = {}  # with strategy and solver
        self._probed = False  # whether a solve has searched for the smallest peak
        self._others = [self._in_tiles(tiled) for tiled in few_splits(step, settings.split, self._open)]

    def _in_tiles(self, tiled: TiledStep) -> Search:
        """Return the same search of a split step."""
        form = copy.copy(self)
        split = replace(self._open, statements=tiled.splits, requires=(*self._open.requires, SPLIT_FEATURE))
        form._open = with_enough_rows(split, ())
        form._parts, form._steps, form._plans, form._others = tiled.blocks, {}, {}, []
        return form

    def planned(self, name: str, note: str) -> Schedule:
        """Return the schedule for all sizes up to the largest that fits. Raises InfeasibleError."""
        most = self._largest(self._most)
        for _ in range(_TRIES):
            self._say(f"planning for up to {self.dim}={most}")
            step = self._prepared(self._upto(most), largest=True, cost=self._cost)
            settings = replace(self._settings, budget=str(self._at(most)[1]))
            try:
                return self._schedule(step, settings, name, note)
            except InfeasibleError:
                if self._cost != MEASURED or most <= self._least:
                    raise
                most = self._largest(most - max(self._step, most // 32))
        raise self._refused(most)

    def _schedule(self, step: Hierarchy, settings: Settings, name: str, note: str) -> Schedule:
        """Plan the largest size, with the plans of the search as a start."""
        if settings.split:
            settings = replace(settings, time_limit=self._limit())
            return plan_split(step, settings, self._cost, name=name, note=note, progress=self._say)
        instance, budget = StepInstance(step.captured.graph, step.parts), int(settings.budget)
        pool = CandidatePool()
        same = _ids(instance) == _ids(next(iter(self._steps.values()))[0])
        for plan in self._known(instance) if same else ():
            pool.keep(plan)
        request = Request(budget, settings.gap, effort_named(settings.effort))
        limits: dict[str, Any] = {"time_limit": self._limit(), "progress": self._say}
        try:
            solution = solve(instance, request, policy(settings.strategy), pool=pool, **limits)
        except InfeasibleError as error:
            raise error.at(step.planned, is_estimated(self._cost)) from None
        if same:
            self._learn(solution)
        return schedule_of(step, solution, budget, self._cost, settings=settings, name=name, note=note)

    def _remaining(self) -> float:
        return self._end - time.monotonic()

    def _limit(self) -> float | None:
        """What remains of the time limit, for one solve."""
        return None if self._end == float("inf") else max(0.001, self._remaining())

    def ladder(self, most: int) -> list[int]:
        """Sizes for the table: down from the largest without recomputation, and some with recomputation."""
        kept = self._last(self._least, most, self._keeps_all) or self._least
        wanted = {most, kept, self._least, *(kept + (most - kept) * k // 4 for k in (1, 2, 3))}
        size = kept
        while size > self._least and len(wanted) < 10:
            wanted.add(size)
            size //= 2
        return sorted({max(self._least, size // self._step * self._step) for size in wanted})

    def batches(self, most: int) -> list[Batch]:
        """The figures of sizes below the largest, largest first, until Ctrl-C or the time limit ends the work."""
        batches: list[Batch] = []
        for size in reversed([size for size in self.ladder(most) if size < most]):
            if self._remaining() <= 0:
                self.ended = True
                break
            try:
                batches.insert(0, self.batch(size))
            except KeyboardInterrupt:
                self.ended = True
                break
        return batches

    def batch(self, size: int) -> Batch:
        """The figures of a size, with its own costs. They are measured at this size if costs are measured."""
        self._say(f"planning at {self.dim}={size}")
        forms = [form._batch(size) for form in (self, *self._others) if form._least <= size]
        base = forms[0].baseline_peak, forms[0].baseline_time
        best = max(forms, key=lambda batch: batch.per_second)
        return replace(best, baseline_peak=base[0], baseline_time=base[1])

    def _batch(self, size: int) -> Batch:
        instance, left = self._at(size)
        if self._cost == MEASURED:
            options = self._options
            again: dict[str, Any] = {"cached": options.cache, "again": options.measure_again, "progress": self._say}
            instance = StepInstance(costed(instance.graph, MEASURED, options.profile, **again), self._parts)
        plan, base = self._solved(instance, left), instance.baseline
        if plan is None:
            return Batch(size, left, base.peak, base.time, None, None, 0)
        return Batch(size, left, base.peak, base.time, plan.peak, plan.time, len(plan.recomputes))

    @property
    def _least(self) -> int:
        return self._open.model.dims[self.dim].min

    @property
    def _step(self) -> int:
        return self._open.model.dims[self.dim].multiple

    def _upto(self, most: int) -> Asking:
        first, *others = self._asking.sizes
        return replace(self._asking, sizes=(replace(first, max=most, lower=first.max is None), *others))

    def _prepared(self, asking: Asking, largest: bool, cost: str) -> Hierarchy:
        sizes = OpenSizes(asking, largest, self._captures)
        options = self._options
        return prepare(self._call, cost=cost, options=options, open_sizes=sizes, gpu=self._gpu, progress=self._say)

    def _at(self, size: int) -> tuple[StepInstance, int]:
        """The step at a size with the costs of the search, and the bytes that the device leaves for it."""
        if size not in self._steps:
            ends = (at_size(self._open, sizes) for sizes in self._ends(size))
            steps = [(self._instance(plain), self._device.left(plain.model)) for plain in ends]
            self._steps[size] = min(steps, key=lambda step: step[1] - step[0].baseline.peak)
        return self._steps[size]

    def _instance(self, plain: Schedule) -> StepInstance:
        return StepInstance(costed(expand(plain).graph, _estimates(self._call, self._cost)), self._parts)

    def _ends(self, size: int) -> list[dict[str, int]]:
        """All sizes up to this one of the size that varies, with the others at their largest: one without limits."""
        model = self._open.model
        dims = {**model.dims, self.dim: replace(model.dims[self.dim], max=size)}
        return list(largest_sizes(dims, model.limits))

    def _largest(self, below: int) -> int:
        """The largest size up to `below` that fits. Raises InfeasibleError.

        After Ctrl-C, or at the time limit, the largest size that is known to fit.
        """
        sizes = [size for form in (self, *self._others) if (size := form._largest_of_form(below)) is not None]
        self.ended |= any(form.ended for form in self._others)
        if not sizes:
            raise self._refused(self._least)
        largest = max(sizes)
        if self.ended:
            self._say(f"the search ended early: the largest size known to fit is {self.dim}={largest}")
        return largest

    def _largest_of_form(self, below: int) -> int | None:
        if self._least > below:
            return None
        kept = self._last(self._least, below, self._keeps_all)
        return self._last(kept or self._least, below, self._fits)

    def _refused(self, size: int) -> DoesNotFitError:
        sizes = self._ends(size)[0]
        held = self._device.held(at_size(self._open, sizes).model)
        floor = min(form._at(size)[0].floor for form in (self, *self._others) if form._least <= size)
        return DoesNotFitError(self._device.memory, held, floor, spelled(sizes))

    def _last(self, low: int, high: int, fits: Callable[[int], bool]) -> int | None:
        """The largest size from `low` to `high` that fits, to a 64th; None if `low` does not fit.

        All sizes below one that fits must fit. Steps grow at first, because the answer is often near `low`.
        """
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

    def _fits(self, size: int) -> bool:
        """Whether a plan fits at a size. After Ctrl-C or the time limit only known plans are tried."""
        instance, left = self._at(size)
        if left < instance.floor:
            return False
        known = min((plan.peak for plan in self._known(instance)), default=instance.baseline.peak)
        if known <= left or (self._probed and left < _NEAR * known):
            return known <= left
        self.ended |= time.monotonic() > self._half
        if self.ended:
            return False
        self._say(f"searching a plan at {self.dim}={size}")
        try:
            return self._solved(instance, left) is not None
        except KeyboardInterrupt:
            self.ended = True
            return False

    def _known(self, instance: StepInstance) -> list[Candidate]:
        """The plans of all solves, simulated for this instance."""
        return [instance.judged(plan, *origin) for plan, origin in self._plans.items()]

    def _learn(self, plan: Candidate | Solution) -> None:
        """Keep a plan for other sizes."""
        if plan.order is None:
            self._plans.setdefault(plan.recomputes, (plan.strategy, plan.solver))

    def _solved(self, instance: StepInstance, left: int) -> Candidate | None:
        """The fastest plan within `left` bytes of the known plans and of a quick solve; None if no plan fits."""
        if left < instance.floor:
            return None
        pool, requested = CandidatePool(), self._settings
        for plan in self._known(instance):
            pool.keep(plan)
        chosen = policy(requested.strategy)
        try:
            request = Request(left, requested.gap, QUICK)
            solve(instance, request, chosen, pool=pool, time_limit=self._limit(), progress=self._say)
        except InfeasibleError:
            self._probed = True
        if pool.interrupted:  # the result is not that of the size
            raise KeyboardInterrupt
        best = pool.best(left, chosen.names)
        for plan in (pool.candidates[-1], best):
            if plan is not None:
                self._learn(plan)
        return best


def _ids(instance: StepInstance) -> list[str]:
    return [operation.id for operation in instance.graph.operations]


def _estimates(call: RecordedCall, cost: str) -> str:
    """The cost model of the search, which needs no device."""
    device = next((p.device.type for p in call.model.parameters()), "cpu")
    return _ESTIMATES.get(device, "h200") if cost == MEASURED else cost
