"""Training by a schedule beside eager PyTorch: same start, same seeds, same inputs; time, peak and gradients compared."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch.utils import _pytree as pytree

import remate_runtime
from remate_runtime.errors import RemateError
from remate_runtime.format import Schedule

from .measure import peak_bytes

Report = Callable[[str], None]


class TrialError(RemateError):
    """The model cannot be trained for the comparison."""


class Trial(msgspec.Struct, frozen=True):
    """What was measured. Peaks in bytes above parameters, buffers, inputs and optimizer state; times in seconds per
    step (forward and backward), in the order of the steps; gradient differences are the largest over all steps."""

    eager_peak: int
    peak: int
    eager_times: tuple[float, ...]
    times: tuple[float, ...]
    gradient_difference: float  # largest absolute difference of any element of any gradient
    gradient_scale: float  # largest absolute element of eager's gradients
    losses: tuple[float, ...]  # the scheduled model's, if it returns a scalar

    @property
    def ratios(self) -> list[float]:
        """Step by step, the schedule's time over eager's."""
        return [ours / eager for ours, eager in zip(self.times, self.eager_times, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


class Side:
    """One of the two models with its own inputs, optimizer, and the gradients that its outputs receive."""

    def __init__(self, model: torch.nn.Module, inputs: tuple[Any, Any], rate: float) -> None:
        self.model = model
        self.args, self.kwargs = pytree.tree_map_only(torch.Tensor, _own, inputs)
        self.leaves = [t for t in pytree.tree_leaves((self.args, self.kwargs)) if _needs_gradient(t)]
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=rate) if trained else None
        self.used: list[int] = []  # positions of the outputs that backward starts from
        self.tangents: list[torch.Tensor] = []

    def outputs(self) -> list[Any]:
        return pytree.tree_leaves(self.model(*self.args, **self.kwargs))

    def step(self) -> float | None:
        """Forward and backward; the loss, if backward starts from one scalar."""
        outputs = self.outputs()
        chosen = [outputs[i] for i in self.used]
        torch.autograd.backward(chosen, self.tangents)
        return float(chosen[0].detach()) if len(chosen) == 1 and chosen[0].numel() == 1 else None

    def gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.model.parameters()] + [t.grad for t in self.leaves]

    def finish(self) -> None:
        """Let the optimizer step, and drop the gradients."""
        if self.optimizer is not None:
            self.optimizer.step()
        self.clear()

    def clear(self) -> None:
        for holder in (*self.model.parameters(), *self.leaves):
            holder.grad = None


def try_schedule(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    schedule: Schedule,
    steps: int,
    rate: float = 0.01,
    report: Report | None = None,
) -> Trial:
    """Train `steps` steps with SGD both ways, taking turns. The model is left as it was.

    Model and inputs must be on the device to train on. Raises BindError if the schedule does not fit the model.
    """
    device = next(iter([*model.parameters(), *model.buffers()]), torch.empty(0)).device
    inputs = (tuple(args), dict(kwargs))
    ours = Side(remate_runtime.apply(copy.deepcopy(model), schedule), inputs, rate)
    eager = Side(copy.deepcopy(model), inputs, rate)
    _choose_tangents(ours, eager, schedule)
    peaks = [_measured_peak(side, device) for side in (eager, ours)]
    times: tuple[list[float], list[float]] = ([], [])
    difference, scale, losses = 0.0, 0.0, []
    for index in range(steps):
        order = ((0, eager), (1, ours)) if index % 2 == 0 else ((1, ours), (0, eager))
        for which, side in order:
            torch.manual_seed(index)
            took, loss = _timed(side, device)
            times[which].append(took)
            if which == 1 and loss is not None:
                losses.append(loss)
        off, largest = _compare(eager.gradients(), ours.gradients())
        difference, scale = max(difference, off), max(scale, largest)
        eager.finish()
        ours.finish()
        if report is not None:
            report(f"training, step {index + 1} of {steps}")
    return Trial(peaks[0], peaks[1], tuple(times[0]), tuple(times[1]), difference, scale, tuple(losses))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _needs_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _choose_tangents(ours: Side, eager: Side, schedule: Schedule) -> None:
    """Backward starts from the outputs that have a gradient in the schedule: with 1 from a scalar, with fixed random
    numbers from another. They are made once, so that no loss outside the model adds to either side's memory."""
    generator = torch.Generator().manual_seed(0)
    outputs = ours.outputs()
    used = [i for i, leaf in enumerate(outputs) if _needs_gradient(leaf)]
    if not used:
        raise TrialError(
            f"no output of {schedule.model.name} needs a gradient\n  hint: nothing is trained in this mode"
        )
    for index in used:
        leaf = outputs[index]
        made = torch.randn(leaf.shape, generator=generator, dtype=torch.float64) / leaf.numel()
        start = torch.ones_like(leaf) if leaf.numel() == 1 else made.to(leaf)
        ours.tangents.append(start)
    ours.used = eager.used = used
    eager.tangents = ours.tangents


def _measured_peak(side: Side, device: torch.device) -> int:
    """Peak of one step, after one that warms up. The state of training is as before, but for buffers both ways."""
    side.step()
    side.clear()
    peak = peak_bytes(side.step, device)
    side.clear()
    return peak


def _timed(side: Side, device: torch.device) -> tuple[float, float | None]:
    _wait(device)
    start = time.perf_counter()
    loss = side.step()
    _wait(device)
    return time.perf_counter() - start, loss


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _compare(eager: list[torch.Tensor | None], ours: list[torch.Tensor | None]) -> tuple[float, float]:
    """Largest absolute difference, and largest absolute element of eager's gradients. A gradient that only one side
    has counts by its size."""
    difference = scale = 0.0
    for one, other in zip(eager, ours, strict=True):
        if one is not None and one.numel():
            scale = max(scale, float(one.abs().max()))
        if one is not None and other is not None:
            difference = max(difference, float((one - other).abs().max()) if one.numel() else 0.0)
        elif (alone := one if other is None else other) is not None and alone.numel():
            difference = max(difference, float(alone.abs().max()))
    return difference, scale
