"""A training step of any model, and the comparison of two models: gradients, outputs, buffers, generators."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from ..bind.containers import is_mapping
from ..errors import RemateError
from ..format.json_values import is_array

Loss = Callable[[Any], torch.Tensor]


class NothingToTrainError(RemateError):
    """Raised if no output of the model is differentiable."""


class NumericalDifference(msgspec.Struct, frozen=True):
    """The largest differences between two models over all steps.

    Attributes:
        absolute: Largest difference between elements of a gradient; infinite if only one model has the gradient or a
            NaN in it.
        relative: The same as a share of the largest element of that gradient. For gradients that are zero but for
            rounding (a bias before batch norm), a small part of the largest gradient of all is added to it.
        where: The gradient with the largest relative difference; "" if all are bitwise equal.
        outputs: Largest absolute difference between elements of an output.
        buffers_equal: Whether buffers are bitwise equal.
        generator_equal: Whether random number generators have equal states.
        beyond: Tensors that differ by more than a different order of sums explains, as text.
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


def tensors_of(tree: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif is_mapping(tree):
        for item in tree.values():
            yield from tensors_of(item)
    elif is_array(tree):
        for item in tree:
            yield from tensors_of(item)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from tensors_of(getattr(tree, field.name))


def default_loss(outputs: object) -> torch.Tensor:
    """Return the first differentiable scalar of `outputs`, else the sum of mean squares of all differentiable outputs.

    The gradient of a mean square is half the usual one: the product with the detached tensor needs one temporary in
    forward, and in backward only the gradient that an ordinary loss would pass on. Neither adds to the peak of the
    model's own step.

    Args:
        outputs: What a model returned.

    Raises:
        NothingToTrainError: No output is differentiable.
    """
    differentiable = [t for t in tensors_of(outputs) if t.requires_grad]
    if not differentiable:
        raise NothingToTrainError(
            "no output of the model needs a gradient: call it in training mode, with gradients on"
        )
    for tensor in differentiable:
        if tensor.ndim == 0 and not tensor.is_complex():
            return tensor
    real = [torch.view_as_real(t) if t.is_complex() else t for t in differentiable]
    means = [(t * t.detach()).sum() / t.numel() for t in real]  # the gradient of mean() would be a tensor of its own
    return torch.stack([mean.to(means[0]) for mean in means]).sum() if len(means) > 1 else means[0]


def clear_gradients(model: nn.Module, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None) -> None:
    """Set `.grad` of parameters and inputs to None."""
    for tensor in (*model.parameters(), *tensors_of((args, kwargs or {}))):
        tensor.grad = None


def training_step(
    model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object] | None = None, loss: Loss = default_loss
) -> Any:
    """Clear gradients, then run forward, loss and backward. Return the output tensors, detached.

    The outputs stay in memory through backward, as in a training loop that reports them.
    """
    clear_gradients(model, args, kwargs)
    outputs = model(*args, **(kwargs or {}))
    lost: Any = loss(outputs)  # torch declares `backward` without types
    lost.backward()
    return [t.detach() for t in tensors_of(outputs)]


def compare_models(
    first: nn.Module,
    second: nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    steps: int = 1,
    loss: Loss = default_loss,
    during: contextlib.AbstractContextManager[Any] | None = None,
) -> NumericalDifference:
    """Run training steps of two models on the same inputs and return how far the second model differs.

    Each step starts from the same parameters, buffers and generator states. Buffers and generators advance as in the
    first model, and are restored at the end; `.grad` is neither read nor written. The models may share parameters and
    buffers.

    Args:
        first: The reference.
        second: The model to compare.
        args: Positional arguments of both calls.
        kwargs: Keyword arguments of both calls.
        steps: Number of training steps.
        loss: Computes a scalar from the outputs.
        during: Entered around the first forward of the first model.

    Raises:
        ValueError: `steps` is below 1.
    """
    start = _BufferSnapshot(first)
    begin, worst = start, None
    try:
        for _ in range(steps):
            expected = _Outcome(first, args, kwargs, loss, during)
            during = None
            begin.restore(first)
            begin.restore(second)
            actual = _Outcome(second, args, kwargs, loss)
            difference = expected.difference(actual)
            worst = difference if worst is None else _worse(worst, difference)
            expected.state.restore(first)
            expected.state.restore(second)
            begin = expected.state
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
    """Return the state of the CPU's generator, then of every CUDA device's if CUDA is in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


class _Outcome:
    """Gradients, outputs and state of a model after a step."""

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        loss: Loss,
        during: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        leaves = {f"input {i}": t for i, t in enumerate(tensors_of((args, kwargs or {}))) if t.is_leaf}
        named = {**dict(model.named_parameters()), **leaves}
        holders = {name: holder for name, holder in named.items() if holder.requires_grad}
        with during or contextlib.nullcontext():
            outputs = model(*args, **(kwargs or {}))
        total = loss(outputs)
        with torch.autocast(
            total.device.type, enabled=False
        ):  # as torch advises; a schedule refuses backward under autocast
            gradients = torch.autograd.grad(total, list(holders.values()), allow_unused=True)
        self.gradients = dict(zip(holders, gradients, strict=True))
        self.outputs = [t.detach().clone() for t in tensors_of(outputs)]
        self.state = _BufferSnapshot(model)
        self.coarsest = coarsest([*named.values(), *self.outputs])

    def difference(self, other: _Outcome) -> NumericalDifference:
        absolute = relative = 0.0
        where = ""
        largest = max(map(largest_finite, self.gradients.values()), default=0.0)
        for name in self.gradients.keys() | other.gradients.keys():
            expected, actual = self.gradients.get(name), other.gradients.get(name)
            distance = _distance(expected, actual)
            own, noise = (1.0, 0.0) if expected is None else _REORDERING.get(expected.dtype, _COARSE)
            scale = largest_finite(expected) + noise / own * largest
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
        for kind, expected, actual in (
            ("gradient of", self.gradients, other.gradients),
            ("output", *outputs),
            ("buffer", *buffers),
        ):
            yield from beyond_reordering(kind, expected, actual, self.coarsest)
        if not same_generators:
            yield "the state of a generator of random numbers"


# Allowed difference of sums in a different order: as a share of a tensor's largest element, and as a share of the
# largest element of all tensors of its kind. The second is for gradients that are zero except for rounding, such as
# that of a bias before a normalization.
_REORDERING = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}
_COARSE = (5e-2, 5e-3)


def coarsest(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """Return the least precise floating-point dtype among tensors and the ambient autocast."""
    dtypes = {t.dtype for t in tensors if t.is_floating_point() or t.is_complex()}
    dtypes |= {torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def beyond_reordering(
    kind: str,
    expected: Mapping[Any, torch.Tensor | None],
    actual: Mapping[Any, torch.Tensor | None],
    dtype: torch.dtype,
) -> Iterator[str]:
    """Yield, as text, the tensors that differ by more than a different order of sums explains.

    Args:
        kind: What the tensors are, for the text.
        expected: Tensors by name.
        actual: Tensors by name.
        dtype: The least precise dtype of the step.
    """
    own, noise = _REORDERING.get(dtype, _COARSE)
    largest = max((largest_finite(t) for t in expected.values()), default=0.0)
    for name in (name for name in expected if name in actual):
        distance = _distance(expected[name], actual[name])
        if distance > own * largest_finite(expected[name]) + noise * largest:
            yield f"{kind} {name!r} by {distance:.3g}, its largest element being {largest_finite(expected[name]):.3g}"


def largest_finite(tensor: torch.Tensor | None) -> float:
    """Return the largest absolute value of a finite element; 0.0 without one."""
    if tensor is None or not tensor.numel() or tensor.dtype is torch.bool:
        return 0.0
    values = tensor.abs()
    return float(values[values.isfinite()].max()) if bool(values.isfinite().any()) else 0.0


def _distance(left: torch.Tensor | None, right: torch.Tensor | None) -> float:
    """Return the largest absolute difference of two tensors: 0 for equal NaN patterns, infinite if not comparable."""
    if left is None or right is None:
        return 0.0 if left is right else float("inf")
    if left.shape != right.shape or left.dtype != right.dtype:
        return float("inf")
    if torch.equal(left, right) or not left.numel():
        return 0.0
    if not (left.is_floating_point() or left.is_complex()):
        return float((left.double() - right.double()).abs().max())
    if not torch.equal(left.isnan(), right.isnan()):
        return float("inf")
    differs = (left != right) & ~left.isnan()  # equal infinities have no difference, and their subtraction would be NaN
    return float((left[differs] - right[differs]).abs().max()) if bool(differs.any()) else 0.0


def _worse(left: NumericalDifference, right: NumericalDifference) -> NumericalDifference:
    larger = right if right.relative > left.relative or (right.where and not left.where) else left
    return NumericalDifference(
        max(left.absolute, right.absolute),
        larger.relative,
        larger.where,
        max(left.outputs, right.outputs),
        left.buffers_equal and right.buffers_equal,
        left.generator_equal and right.generator_equal,
        tuple(dict.fromkeys([*left.beyond, *right.beyond])),
    )
