"""The gradients of outputs, as backward was recorded with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

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

    def note(self, output: str, gradient: torch.Tensor) -> None:
        """Remember the layout of a gradient, and warn of it.

        Args:
            output: Name of the output.
            gradient: Its gradient.
        """
        if not all(stride for size, stride in zip(gradient.shape, gradient.stride(), strict=True) if size > 1):
            return  # kernels copy an expanded gradient themselves
        self.arrived[output] = layout = _layout(gradient)
        if self.warns:
            warnings.warn(
                f"the gradient of output {output!r} has a different memory layout than planned ({layout}), and the "
                "schedule copies it: convolutions choose other kernels for it, so gradients differ by rounding from "
                "those of eager PyTorch\n  for bitwise results, remate.plan(..., "
                f"differentiate={self.differentiate!r})",
                UserWarning,
                stacklevel=2,
            )


def tangent_as_recorded(
    gradient: torch.Tensor | None, type_: TensorType, device: torch.device, output: str, layouts: GradientLayouts | None
) -> torch.Tensor:
    """Return the gradient of an output in the layout that backward was recorded with; zeros for None.

    Args:
        gradient: The gradient.
        type_: The recorded type.
        device: Device of the step.
        output: Name of the output.
        layouts: Receives a different layout; None if no kernel of backward chooses its order of sums by it.
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
    if layouts is not None:
        layouts.note(output, gradient)
    return empty(type_, device).copy_(gradient)


def _layout(gradient: torch.Tensor) -> str:
    """Return the name of a memory layout, or its axes by descending stride."""
    if gradient.is_contiguous():
        return "contiguous"
    shape, strides = gradient.shape, gradient.stride()
    order = sorted(range(gradient.dim()), key=lambda axis: (-strides[axis], shape[axis]))
    for axes in _CHANNELS_LAST:
        if len(axes) == gradient.dim() and gradient.permute(axes).is_contiguous():
            return "channels_last"
    return ",".join(map(str, order))
