"""The gradients of outputs, as backward was recorded with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from ..format.memory_layouts import axes_by_stride, layout_text
from ..format.signature import Leaf
from ..link.contract import Tangent
from ..operator_calls.overloads import TORCH_DTYPES, empty, laid_out


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

    def note(self, output: str, gradient: torch.Tensor, tangent: Tangent) -> None:
        """Remember the layout of a gradient, and warn if kernels round differently.

        Args:
            output: Name of the output.
            gradient: Its gradient.
            tangent: What was planned.
        """
        shape, strides = tuple(gradient.shape), gradient.stride()
        if not all(stride for size, stride in zip(shape, strides, strict=True) if size > 1):
            return  # kernels copy an expanded gradient themselves
        if axes_by_stride(shape, strides) == axes_by_stride(shape, tangent.type.strides):
            if tangent.gaps_matter:
                self._warn(output, "gaps", "combine the output with other tensors within forward, or return the loss")
        elif tangent.layout_matters:
            self.arrived[output] = layout = layout_text(shape, strides)
            if self.warns:
                advice = f"remate.plan(..., differentiate={self.differentiate!r})"
                self._warn(output, f"a different memory layout than planned ({layout})", advice)

    @staticmethod
    def _warn(output: str, what: str, advice: str) -> None:
        warnings.warn(
            f"the gradient of output {output!r} has {what}, and the schedule copies it: kernels can add up in another "
            f"order then, so gradients can differ by rounding from those of eager PyTorch\n  for bitwise results, "
            f"{advice}",
            UserWarning,
            stacklevel=3,
        )


def tangent_as_recorded(
    gradient: torch.Tensor | None, tangent: Tangent, device: torch.device, output: str, layouts: GradientLayouts
) -> torch.Tensor:
    """Return the gradient of an output in the layout that backward was recorded with; zeros for None.

    Args:
        gradient: The gradient.
        tangent: What was recorded.
        device: Device of the step.
        output: Name of the output.
        layouts: Receives a layout that was not planned.
    """
    type_ = tangent.type
    if gradient is None:
        return empty(type_, device).zero_()
    if (
        gradient.dtype is TORCH_DTYPES[type_.dtype]
        and laid_out(gradient, type_)
        and not gradient.is_conj()
        and not gradient.is_neg()
    ):
        return gradient.detach()
    layouts.note(output, gradient, tangent)
    return empty(type_, device).copy_(gradient)
