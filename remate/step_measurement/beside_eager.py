"""Trains by a schedule beside eager PyTorch with equal start, seeds and inputs, and compares time, peak and
gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import msgspec
import torch

from remate_runtime import apply, predicted_peak
from remate_runtime.applied import measured_pages
from remate_runtime.engine import MeasuredLane, engine_of
from remate_runtime.errors import RemateError
from remate_runtime.flat_step import expand
from remate_runtime.format import PLANNED, Gradients, Schedule, at_size
from remate_runtime.link import Timeline, link, parameter_bytes, simulate
from remate_runtime.operator_calls import TORCH_DTYPES
from remate_runtime.staleness import (
    EagerOperators,
    beyond_eager,
    beyond_reordering,
    clear_gradients,
    coarsest,
    default_loss,
    tensors_of,
)
from remate_runtime.torch_private import pytree

from .allocator import MemoryCurve, memory_curve, peak_bytes, timed

Report = Callable[[str], None]
_random: Any = torch.random  # torch declares its functions without types


class TrialError(RemateError):
    """Raised if the comparison is not possible on this machine."""


class PagedLane(msgspec.Struct, frozen=True):
    """The traffic of a lane in a step, and the time that the step waits for it.

    Attributes:
        direction: Of the copies.
        nbytes: Bytes that are moved, measured.
        predicted_nbytes: The same, predicted.
        waited: Median of the ns that a step waits.
        predicted_wait: The same, predicted.
    """

    direction: str
    nbytes: int
    predicted_nbytes: int
    waited: int
    predicted_wait: int


class Trial(msgspec.Struct, frozen=True):
    """The results of a comparison.

    Peaks are bytes beside parameters, buffers, inputs and optimizer state, with gradients as the schedule assumes.
    Times are ns of forward and backward, by step.

    Attributes:
        difference: Largest absolute difference between elements of a gradient, over all steps.
        scale: Largest absolute element of eager's gradients.
        losses: Losses of the scheduled model, by step.
    """

    eager_peak: int
    peak: int
    eager_times: tuple[int, ...]
    times: tuple[int, ...]
    difference: float
    scale: float
    losses: tuple[float, ...]
    # Gradients of the first step whose difference a different order of sums does not explain.
    beyond: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()  # operations of the schedule's forward that eager's does not run
    curve: MemoryCurve | None = None  # memory over a step of the schedule, if requested
    predicted: int = 0  # predicted peak of the schedule in bytes, by its engine
    parameters: int = 0  # bytes of parameters, where both peaks count them because the schedule pages some
    lanes: tuple[PagedLane, ...] = ()  # paged values
    loss: int = 0  # bytes of a loss that is not the model's own, with its gradient: peaks count it, schedules do not

    @property
    def ratios(self) -> list[float]:
        """Return the schedule's time as a share of eager's, by step."""
        return [ours / eager for ours, eager in zip(self.times, self.eager_times, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)


class _Side:
    """One of the two models, with its own inputs and optimizer."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        rate: float,
        cast: torch.dtype | None,
        gradients: Gradients,
        keeps: bool = False,
    ) -> None:
        """Prepare a side. keeps: the model keeps memory between steps, so that its peak is that of the first step."""
        self.model, self.cast, self.assumed, self._keeps = model, cast, gradients, keeps
        self.args, self.kwargs = pytree.tree_map_only(torch.Tensor, _own, (tuple(args), dict(kwargs)))
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer: Any = torch.optim.SGD(trained, lr=rate) if trained else None
        self.start_from: frozenset[int] | None = None  # outputs that backward starts from; None: not known yet
        self.during: AbstractContextManager[object] = nullcontext()  # entered around the next forward
        self.loss, self.loss_bytes = 0.0, 0

    def step(self, backward_start: Callable[[], None] = lambda: None) -> None:
        """Run forward under the planned autocast, `backward_start`, and backward.

        The outputs stay in memory until its end, as in a training loop that reports them.
        """
        device = next((p.device.type for p in self.model.parameters()), "cpu")
        with torch.autocast(device, self.cast, enabled=self.cast is not None), self.during:
            outputs = list(tensors_of(self.model(*self.args, **self.kwargs)))
        self.during = nullcontext()
        if self.start_from is None:
            self.start_from = frozenset(i for i, t in enumerate(outputs) if t.requires_grad)
        loss: Any = default_loss([t for i, t in enumerate(outputs) if i in self.start_from])
        self.loss_bytes = 0 if any(loss is output for output in outputs) else 2 * loss.nbytes  # with its gradient
        backward_start()
        loss.backward()
        self.loss = float(loss.detach())

    def gradients(self) -> list[torch.Tensor | None]:
        return [t.grad for t in (*self.model.parameters(), *tensors_of((self.args, self.kwargs)))]

    def clear(self) -> None:
        clear_gradients(self.model, self.args, self.kwargs)

    def peak(self, device: torch.device) -> int:
        """Return the peak of a step in bytes after a warm-up step."""
        with self._as_assumed():
            self.step()
        if self._keeps:  # both sides run equally many steps
            with self._as_assumed():
                self.step()
        with self._with_nothing_kept(), self._as_assumed():
            return peak_bytes(self.step, device)

    def curve(self, device: torch.device) -> MemoryCurve:
        """Return the memory over a step. Call `peak` first, which warms up."""
        with self._with_nothing_kept(), self._as_assumed():
            return memory_curve(self.step, device)

    @contextmanager
    def _with_nothing_kept(self) -> Generator[None]:
        used = self.model
        self.model = copy.deepcopy(used) if self._keeps else used
        try:
            yield
        finally:
            self.model = used

    @contextmanager
    def _as_assumed(self) -> Generator[None]:
        """Treat gradients as the schedule assumes: no `.grad`, an existing one, or one that is consumed immediately."""
        self.clear()
        trained: list[Any] = [p for p in self.model.parameters() if p.requires_grad]
        if self.assumed == "accumulated":
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
        hooks = [p.register_post_accumulate_grad_hook(_free) for p in trained if self.assumed == "consumed"]
        _random.manual_seed(0)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self.clear()


def try_schedule(
    model: torch.nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    schedule: Schedule,
    steps: int,
    rate: float = 0.01,
    report: Report | None = None,
    curve: bool = False,
    namespaces: Sequence[str] = (),
    engine: str = "eager",
    dims: Mapping[str, int] = PLANNED,
) -> Trial:
    """Train copies of `model` with SGD, by the schedule and by eager PyTorch in rotation.

    Model and inputs must be on the device to train on.

    Args:
        model: The live model.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        schedule: The schedule.
        steps: Number of steps.
        rate: Learning rate.
        report: Receives progress as text.
        curve: Record the memory over a further step of the schedule.
        namespaces: Permitted operators, as in `apply`.
        engine: As in `apply`.
        dims: The size of the inputs, if the schedule names sizes.

    Raises:
        EngineError: The engine cannot execute it.
        BindError: The schedule does not fit the model.
        NothingToTrainError: No output requires a gradient.
    """
    say = report or _nothing
    device = next(iter([*model.parameters(), *model.buffers()]), torch.empty(0)).device
    cast = TORCH_DTYPES[schedule.model.autocast] if schedule.model.autocast else None
    options: dict[str, Any] = {"namespaces": namespaces, "engine": engine}
    applied = apply(copy.deepcopy(model), schedule, verify="never", **options)  # eager runs beside it in all steps
    assumed = schedule.solve.gradients
    ours = _Side(applied, args, kwargs, rate, cast, assumed, engine_of(engine).keeps)
    eager = _Side(copy.deepcopy(model), args, kwargs, rate, cast, assumed)
    say("measuring the peak of the schedule")
    with _explained("training by the schedule"):
        peak = ours.peak(device)
    followed = ours.curve(device) if curve else None
    eager.start_from = ours.start_from
    eager.during = operators = EagerOperators()
    say("measuring eager's peak")
    with _explained("training by eager PyTorch"):
        eager_peak = eager.peak(device)
    times: dict[_Side, list[int]] = {eager: [], ours: []}
    difference, scale, losses, beyond = 0.0, 0.0, list[float](), tuple[str, ...]()
    moved: list[tuple[MeasuredLane, ...]] = []
    for index in range(steps):
        say(f"training, step {index + 1} of {steps}")
        for side in (eager, ours) if index % 2 == 0 else (ours, eager):
            _random.manual_seed(index)
            times[side].append(timed(side.step, device))
        moved.append(measured_pages(applied, dims))
        if index == 0:
            beyond = tuple(_beyond(eager, ours))
        far, largest = _compare(eager.gradients(), ours.gradients())
        difference, scale = max(difference, far), max(scale, largest)
        losses.append(ours.loss)
        for side in (eager, ours):
            if side.optimizer is not None:
                side.optimizer.step()
            side.clear()
    taken = tuple(times[eager]), tuple(times[ours])
    expanded = expand(at_size(schedule, dims))
    parted = tuple(beyond_eager(expanded.unsplit, operators))
    linked = link(expanded.graph, expanded.recomputes, expanded.pages) if expanded.pages else None
    counted = parameter_bytes(expanded.graph) if linked is not None and linked.parameters_paged else 0
    predicted, held = predicted_peak(applied, dims), eager_peak + counted
    lanes = () if linked is None else tuple(_lanes(moved, simulate(linked)))
    results = beyond, parted, followed, predicted, counted, lanes, ours.loss_bytes
    return Trial(held, peak, *taken, difference, scale, tuple(losses), *results)


def _lanes(moved: Sequence[tuple[MeasuredLane, ...]], timeline: Timeline) -> Iterator[PagedLane]:
    for lane in timeline.lanes:
        steps = [measured for lanes in moved for measured in lanes if measured.direction == lane.direction]
        if steps:
            waited = int(median(measured.waited for measured in steps))
            yield PagedLane(lane.direction, steps[-1].nbytes, lane.nbytes, waited, lane.stall)


def _beyond(eager: _Side, ours: _Side) -> Iterator[str]:
    """Yield differing gradients of the first step, in which both sides have equal parameters."""
    names = [name for name, _ in eager.model.named_parameters()]
    names += [f"input {at}" for at, _ in enumerate(tensors_of((eager.args, eager.kwargs)))]
    expected, actual = (dict(zip(names, side.gradients(), strict=True)) for side in (eager, ours))
    computed = [*eager.model.parameters(), *tensors_of((eager.args, eager.kwargs))]
    yield from beyond_reordering("gradient of", expected, actual, coarsest(computed))


def _nothing(text: str) -> None:
    """Report nothing."""


@contextmanager
def _explained(what: str) -> Generator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        hint = "\n  hint: both are trained here; a training script with `remate_runtime.apply` holds only one of them"
        raise TrialError(f"{what} runs out of memory: {str(error).splitlines()[0]}{hint}") from error


def _free(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _compare(eager: list[torch.Tensor | None], ours: list[torch.Tensor | None]) -> tuple[float, float]:
    """Return the largest absolute difference, and the largest absolute element of eager's gradients.

    The difference is infinite if only one side has a gradient.
    """
    difference = scale = 0.0
    for left, right in zip(eager, ours, strict=True):
        if left is None or right is None:
            difference = difference if left is right else float("inf")
        elif left.numel():
            scale = max(scale, float(left.abs().max()))
            far = float((left - right).abs().max())
            difference = max(difference, far if far == far else float("inf"))
    return difference, scale
