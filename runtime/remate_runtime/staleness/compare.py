"""A training step of any model, and two models compared step by step: gradients, outputs, buffers, generators."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from ..errors import RemateError

Loss = Callable[[Any], torch.Tensor]


class NothingToTrainError(RemateError):
    """No output of the model is differentiable."""


class NumericalDifference(msgspec.Struct, frozen=True):
    """How far the second model is from the first, the worst of all steps.

    absolute: largest difference of any element of a gradient. relative: the same, relative to the largest element of
    that gradient. A gradient that only one side has, or NaN on one side, is infinitely far. where: the gradient that
    is worst, "" if all are equal bit by bit. outputs: largest absolute difference of any output.
    """

    absolute: float
    relative: float
    where: str
    outputs: float
    buffers_equal: bool
    generator_equal: bool
    beyond: tuple[str, ...] = ()

    @property
    def bitwise(self) -> bool:
        return not self.where and self.outputs == 0.0 and self.buffers_equal and self.generator_equal


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_of(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from tensors_of(item)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from tensors_of(getattr(tree, field.name))


def default_loss(outputs: Any) -> torch.Tensor:
    """The first differentiable scalar of `outputs`; without one, the sum of the mean squares of all that are
    differentiable, taking for gradient half of theirs.

    Raises NothingToTrainError. The product with the detached tensor makes one temporary forward, and backward exactly
    the gradient that an ordinary loss would hand over: neither adds to the peak of the model's own step.
    """
    found = [t for t in tensors_of(outputs) if t.requires_grad]
    if not found:
        raise NothingToTrainError(
            "no output of the model needs a gradient: call it in training mode, with gradients on"
        )
    for tensor in found:
        if tensor.ndim == 0 and not tensor.is_complex():
            return tensor
    real = [torch.view_as_real(t) if t.is_complex() else t for t in found]
    means = [(t * t.detach()).sum() / t.numel() for t in real]  # the gradient of mean() would be a tensor of its own
    return torch.stack([mean.to(means[0]) for mean in means]).sum() if len(means) > 1 else means[0]


def clear_gradients(model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
    for tensor in (*model.parameters(), *tensors_of((args, kwargs or {}))):
        tensor.grad = None


def training_step(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, loss: Loss = default_loss
) -> Any:
    """Gradients to None, forward, loss, backward. Returns the outputs, detached from the graph where they are tensors.

    The outputs live through backward, as they do in a training loop that reports them.
    """
    clear_gradients(model, args, kwargs)
    outputs = model(*args, **(kwargs or {}))
    loss(outputs).backward()
    return [t.detach() for t in tensors_of(outputs)]


def compare_models(
    first: nn.Module,
    second: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    steps: int = 1,
    loss: Loss = default_loss,
    during: contextlib.AbstractContextManager[Any] | None = None,
) -> NumericalDifference:
    """Run `steps` training steps of both models on the same inputs, each step from the same parameters, buffers and
    generator states, and say how far the second is off. Buffers and generators advance as the first model leaves them,
    and are put back at the end; `.grad` is neither read nor written. The models may share parameters and buffers.
    during: entered around the first forward of the first model.
    """
    start = _BufferSnapshot(first)
    begin, worst = start, None
    try:
        for _ in range(steps):
            one = _Outcome(first, args, kwargs, loss, during)
            during = None
            begin.restore(first)
            begin.restore(second)
            other = _Outcome(second, args, kwargs, loss)
            found = one.difference(other)
            worst = found if worst is None else _worse(worst, found)
            one.state.restore(first)
            one.state.restore(second)
            begin = one.state
    finally:
        start.restore(first)
        start.restore(second)
    if worst is None:
        raise ValueError("compare_models needs at least one step")
    return worst


class _BufferSnapshot:
    """Copies of a model's buffers and of the generator states."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
        self.generators = generator_states()

    def restore(self, model: nn.Module) -> None:
        with torch.no_grad():
            for name, buffer in model.named_buffers(remove_duplicate=False):
                if name in self.buffers:
                    buffer.copy_(self.buffers[name])
        torch.set_rng_state(self.generators[0])
        if torch.cuda.is_initialized():
            torch.cuda.set_rng_state_all(self.generators[1:])

    def equal(self, other: _BufferSnapshot) -> bool:
        both = self.buffers.keys() & other.buffers.keys()
        return all(_distance(self.buffers[name], other.buffers[name]) == 0.0 for name in both)


def generator_states() -> list[torch.Tensor]:
    """The state of the CPU's generator, then of every CUDA device's where CUDA is in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


class _Outcome:
    """What a step left behind."""

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        loss: Loss,
        during: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        leaves = {f"input {i}": t for i, t in enumerate(tensors_of((args, kwargs or {}))) if t.is_leaf}
        named = {**dict(model.named_parameters()), **leaves}
        holders = {name: holder for name, holder in named.items() if holder.requires_grad}
        with during or contextlib.nullcontext():
            outputs = model(*args, **(kwargs or {}))
        total = loss(outputs)
        with torch.autocast(total.device.type, enabled=False):  # as torch advises; a schedule refuses it under autocast
            made = torch.autograd.grad(total, list(holders.values()), allow_unused=True)
        self.gradients = dict(zip(holders, made, strict=True))
        self.outputs = [t.detach().clone() for t in tensors_of(outputs)]
        self.state = _BufferSnapshot(model)
        self.coarsest = coarsest([*named.values(), *self.outputs])

    def difference(self, other: _Outcome) -> NumericalDifference:
        absolute = relative = 0.0
        where = ""
        for name in self.gradients.keys() | other.gradients.keys():
            one, two = self.gradients.get(name), other.gradients.get(name)
            distance = _distance(one, two)
            scale = largest_finite(one)
            share = 0.0 if not distance else distance / scale if scale else float("inf")
            absolute = max(absolute, distance)
            if share > relative:
                relative, where = share, name
        outputs = [_distance(a, b) for a, b in zip(self.outputs, other.outputs, strict=False)]
        if len(self.outputs) != len(other.outputs):
            outputs.append(float("inf"))
        same = all(torch.equal(a, b) for a, b in zip(self.state.generators, other.state.generators, strict=True))
        return NumericalDifference(
            absolute,
            relative,
            where,
            max(outputs, default=0.0),
            self.state.equal(other.state),
            same,
            tuple(self._beyond(other, same)),
        )

    def _beyond(self, other: _Outcome, same_generators: bool) -> Iterator[str]:
        if len(self.outputs) != len(other.outputs):
            yield f"{len(other.outputs)} outputs for {len(self.outputs)}"
        outputs = [dict(enumerate(side.outputs)) for side in (self, other)]
        buffers = [side.state.buffers for side in (self, other)]
        for kind, one, two in (
            ("gradient of", self.gradients, other.gradients),
            ("output", *outputs),
            ("buffer", *buffers),
        ):
            yield from beyond_reordering(kind, one, two, self.coarsest)
        if not same_generators:
            yield "the state of a generator of random numbers"


# Share of a tensor's largest element, and of the largest element of all tensors of its kind, by which sums made in
# another order may differ. The second is for gradients that are zero but for rounding: of a bias before a
# normalization.
_REORDERING = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}
_COARSE = (5e-2, 5e-3)


def coarsest(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """The floating dtype of fewest digits among tensors, or that of the ambient autocast."""
    found = {t.dtype for t in tensors if t.is_floating_point() or t.is_complex()}
    found |= {torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def beyond_reordering(
    kind: str, one: Mapping[Any, torch.Tensor | None], two: Mapping[Any, torch.Tensor | None], dtype: torch.dtype
) -> Iterator[str]:
    """The tensors that differ by more than sums made in another order explain. kind: what they are, for the text.
    dtype: that of the coarsest numbers which the step computes with."""
    own, noise = _REORDERING.get(dtype, _COARSE)
    largest = max((largest_finite(t) for t in one.values()), default=0.0)
    for name in (name for name in one if name in two):
        distance = _distance(one[name], two[name])
        if distance > own * largest_finite(one[name]) + noise * largest:
            yield f"{kind} {name!r} by {distance:.3g}, its largest element being {largest_finite(one[name]):.3g}"


def largest_finite(tensor: torch.Tensor | None) -> float:
    """The largest absolute value of a finite element; 0.0 where there is none."""
    if tensor is None or not tensor.numel() or tensor.dtype is torch.bool:
        return 0.0
    values = tensor.abs()
    return float(values[values.isfinite()].max()) if bool(values.isfinite().any()) else 0.0


def _distance(one: torch.Tensor | None, two: torch.Tensor | None) -> float:
    """Largest absolute difference of two tensors; 0 for two equal NaN patterns, infinite where they cannot be
    compared."""
    if one is None or two is None:
        return 0.0 if one is two else float("inf")
    if one.shape != two.shape or one.dtype != two.dtype:
        return float("inf")
    if torch.equal(one, two) or not one.numel():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return float((one.double() - two.double()).abs().max())
    if not torch.equal(one.isnan(), two.isnan()):
        return float("inf")
    differs = (one != two) & ~one.isnan()  # equal infinities have no difference, and their subtraction would be NaN
    return float((one[differs] - two[differs]).abs().max()) if bool(differs.any()) else 0.0


def _worse(one: NumericalDifference, two: NumericalDifference) -> NumericalDifference:
    larger = two if two.relative > one.relative or (two.where and not one.where) else one
    return NumericalDifference(
        max(one.absolute, two.absolute),
        larger.relative,
        larger.where,
        max(one.outputs, two.outputs),
        one.buffers_equal and two.buffers_equal,
        one.generator_equal and two.generator_equal,
        tuple(dict.fromkeys([*one.beyond, *two.beyond])),
    )
