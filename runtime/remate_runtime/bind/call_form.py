"""The form of a call: what forward may ask its arguments beside their values, shapes and types.

A schedule accepts a tuple for a list, a subclass of Tensor for a Tensor, and tensors of any memory layout, and computes
what it was planned for. Forward may compute something else then: another branch (`isinstance`, `is_contiguous`), or
kernels that sum in another order. The self-check looks at the first call of each form.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch

from .containers import children


def form_of(args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
    """Return the form of a call: classes, and of tensors the layout and whether they require grad."""
    return (*map(_form, args), *((name, _form(value)) for name, value in kwargs.items()))


def _form(value: object) -> Hashable:
    if isinstance(value, torch.Tensor):
        return type(value), value.requires_grad, _layout(value)
    inner = children(value)
    return type(value) if inner is None else (type(value), *map(_form, inner[1].values()))


def _layout(tensor: torch.Tensor) -> Hashable:
    """Return the order of a tensor's axes in memory, and which repeat; None for a contiguous tensor."""
    if tensor.layout is not torch.strided or (tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()):
        return None
    axes = [
        (-stride, axis)
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if size > 1
    ]
    repeated = tuple(axis for stride, axis in axes if not stride)
    return tuple(axis for _, axis in sorted(axes)), repeated, tensor.is_conj(), tensor.is_neg()
