"""The gradients of outputs, as backward was recorded with them."""

from __future__ import annotations

import warnings

import torch

from ..format.tensor_type import TensorType
from ..operator_calls.overloads import TORCH_DTYPES, empty, laid_out


def tangent_as_recorded(
    gradient: torch.Tensor | None, type_: TensorType, device: torch.device, what: str, layout_matters: bool
) -> torch.Tensor:
    """Return the gradient of an output in the layout that backward was recorded with; zeros for None.

    Args:
        gradient: The gradient.
        type_: The recorded type.
        device: Device of the step.
        what: The output, for a warning.
        layout_matters: Whether kernels of backward choose their order of sums by the layout.
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
    if layout_matters and _is_permuted(gradient):
        warnings.warn(
            f"the gradient of {what} arrives in another memory layout than the output has (permuted), and the schedule "
            "copies it: convolutions choose other kernels for it, so gradients differ by rounding from those of eager "
            "PyTorch\n  for bitwise results, permute or reshape the output within forward, or return the loss",
            UserWarning,
            stacklevel=2,
        )
    return empty(type_, device).copy_(gradient)


def _is_permuted(gradient: torch.Tensor) -> bool:
    """Whether it has elements of its own, in another order. Kernels copy an expanded one themselves."""
    return all(stride for size, stride in zip(gradient.shape, gradient.stride(), strict=True) if size > 1)
