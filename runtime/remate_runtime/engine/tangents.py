"""The gradients of outputs, as backward was recorded with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch

from ..format.signature import Leaf
from ..format.tensor_type import TensorType
from ..operator_calls.overloads import TORCH_DTYPES, empty, laid_out

_CHANNELS_LAST = ([0, 2, 3, 1], [0, 2, 3, 4, 1])


class GradientLayouts:
    """The memory layouts in which gradients of outputs arrive, if they are not the planned ones.

    Attributes:
        warns: Whether backward warns of them.
        arrived: The layouts by name of the output, as `remate.plan(differentiate=)` takes them.
    """

    def __init__(self, outputs: Iterable[Leaf] = ()) -> None:
        self._planned = {leaf.name: leaf.differentiate for leaf in outputs if leaf.grad}
        self.arrived: dict[str, str] = {}
        self.warns = True

    @property
    def differentiate(self) -> list[str]:
        """The argument of `remate.plan` for the layouts that arrived."""
        return [*{**self._planned, **{name: f"{name}:{layout}" for name, layout in self.arrived.items()}}.values()]

    def note(
        self, output: str, gradient: torch.Tensor, planned: TensorType, layout_matters: bool, summed: bool
    ) -> None:
        """Remember the layout of a gradient, and warn if kernels round differently.

        Args:
            output: Name of the output.
            gradient: Its gradient.
            planned: The type that was planned.
            layout_matters: As in `StepContract`.
            summed: As in `Tangent`.
        """
        shape, strides = tuple(gradient.shape), gradient.stride()
        if not all(stride for size, stride in zip(shape, strides, strict=True) if size > 1):
            return  # kernels copy an expanded gradient themselves
        layout = _layout(gradient)
        if _order(shape, strides) == _order(shape, planned.strides):
            if summed:
                self._warn(output, "gaps", "combine the output with other tensors within forward, or return the loss")
        elif layout_matters:
            self.arrived[output] = layout
            if self.warns:
                advice = f"remate.plan(..., differentiate={self.differentiate!r})"
                self._warn(output, f"a different memory layout than planned ({layout})", advice)

    @staticmethod
    def _warn(output: str, what: str, advice: str) -> None:
        warnings.warn(
            f"the gradient of output {output!r} has {what}, and the schedule copies it: kernels add up in a different "
            f"order then, so gradients differ by rounding from those of eager PyTorch\n  for bitwise results, {advice}",
            UserWarning,
            stacklevel=3,
        )


def tangent_as_recorded(
    gradient: torch.Tensor | None,
    type_: TensorType,
    device: torch.device,
    output: str,
    layouts: GradientLayouts,
    layout_matters: bool,
    summed: bool,
) -> torch.Tensor:
    """Return the gradient of an output in the layout that backward was recorded with; zeros for None.

    Args:
        gradient: The gradient.
        type_: The recorded type.
        device: Device of the step.
        output: Name of the output.
        layouts: Receives a layout that was not planned.
        layout_matters: As in `StepContract`.
        summed: As in `Tangent`.
    """
    if gradient is None:
        return empty(type_, device).zero_()
    if (
        gradient.dtype is TORCH_DTYPES[type_.dtype]
        and laid_out(gradient, type_)
        and not gradient.is_conj()
        and not gradient.is_neg()
    ):
        return gradient.detach()
    layouts.note(output, gradient, type_, layout_matters, summed)
    return empty(type_, device).copy_(gradient)


def _layout(gradient: torch.Tensor) -> str:
    """Return the name of a memory layout, or its axes by descending stride."""
    if gradient.is_contiguous():
        return "contiguous"
    for axes in _CHANNELS_LAST:
        if len(axes) == gradient.dim() and gradient.permute(axes).is_contiguous():
            return "channels_last"
    shape, strides = gradient.shape, gradient.stride()
    return ",".join(map(str, sorted(range(gradient.dim()), key=lambda axis: (-strides[axis], shape[axis]))))


def _order(shape: Sequence[int], strides: Sequence[int] | None) -> list[int]:
    """Return the axes of more than one element by descending stride."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    return axes if strides is None else sorted(axes, key=lambda axis: -strides[axis])
